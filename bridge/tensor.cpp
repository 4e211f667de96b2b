// Kernels about storages, views and copies: what no row of the op table can say.
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/SDPBackend.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/Resize.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_copy_from_and_resize.h>
#include <ATen/ops/_native_multi_head_attention_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_transformer_encoder_layer_fwd_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/index.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/nonzero_static.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <mutex>
#include <numeric>

#include "bridge/bridge.h"

namespace tpu {

at::Tensor wrap(tpu_storage *storage, tpu_dtype dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  const c10::Device device(kDevice, static_cast<c10::DeviceIndex>(tpu_storage_device(storage)));
  c10::DataPtr data(reinterpret_cast<void *>(tpu_storage_address(storage)), storage, &release_storage, device);
  auto impl =
      c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), static_cast<size_t>(tpu_storage_nbytes(storage)),
                                            std::move(data), allocator(), /*resizable=*/true);
  auto t =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(impl)), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                               c10::scalarTypeToTypeMeta(scalar_type_of(dtype)));
  t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return t;
}

at::Tensor make_empty(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType type, int device) {
  at::detail::check_size_nonnegative(sizes);
  const tpu_dtype dtype = dtype_of(type);
  const size_t item = c10::elementSize(type);
  c10::DimVector row_major;
  const bool contiguous = strides.data() == nullptr;
  if (contiguous) {
    row_major = c10::contiguous_strides(sizes);
    strides = row_major;
  }
  const size_t nbytes = contiguous ? at::detail::computeStorageNbytesContiguous(sizes, item)
                                   : at::detail::computeStorageNbytes(sizes, strides, item);
  tpu_storage *storage;
  check(tpu_storage_create(device, static_cast<int64_t>(nbytes), &storage));
  const tpu_tensor as{storage, dtype, static_cast<int>(sizes.size()), sizes.data(), strides.data(), 0};
  tpu_storage_hint(storage, &as);
  return wrap(storage, dtype, sizes, strides);
}

at::Tensor resolve(const at::Tensor &t) {
  at::AutoDispatchBelowADInplaceOrView guard;
  at::Tensor r = t;
  if (r.is_conj()) {
    r = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(t.storage()),
                                                 t.key_set().remove(c10::DispatchKey::Conjugate), t.dtype());
    r.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
    const bool negated = t.is_neg();
    if (negated) r._set_neg(false);
    r = at::conj_physical(r);
    return negated ? at::neg(r) : r;
  }
  if (!r.is_neg()) return r;
  r = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(t.storage()),
                                               t.key_set().remove(c10::DispatchKey::Negative), t.dtype());
  r.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  return at::neg(r);
}

void resize_storage(c10::StorageImpl *storage, int64_t nbytes) {
  TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
  const c10::DataPtr &old = storage->_mutable_data_ptr_no_checks();
  if (old.get_deleter() != &release_storage) foreign_storage();
  auto *ours = static_cast<tpu_storage *>(old.get_context());
  check(tpu_storage_resize(recording_lane(), ours, nbytes));
  tpu_storage_retain(ours);  // the old DataPtr lets go of one count
  storage->set_data_ptr_noswap(
      c10::DataPtr(reinterpret_cast<void *>(tpu_storage_address(ours)), ours, &release_storage, old.device()));
  storage->set_nbytes(static_cast<size_t>(nbytes));
}

namespace {

// --- creation

void check_options(std::optional<at::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(at::kStrided) == at::kStrided, "Only strided tensors live on a ",
                              c10::DeviceTypeName(kDevice, true), " device, not layout ", layout.value_or(at::kStrided));
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                 std::optional<at::Device> device, std::optional<bool> pin_memory,
                 std::optional<at::MemoryFormat> memory_format) {
  check_options(layout, pin_memory);
  const auto type = dtype.value_or(c10::get_default_dtype_as_scalartype());
  const auto format = memory_format.value_or(at::MemoryFormat::Contiguous);
  TORCH_CHECK(format != at::MemoryFormat::Preserve, "unsupported memory format option ", format);
  if (format == at::MemoryFormat::Contiguous) return make_empty(size, {}, type, device_index(device));
  const auto strides = format == at::MemoryFormat::ChannelsLast ? c10::get_channels_last_strides_2d(size)
                                                                : c10::get_channels_last_strides_3d(size);
  return make_empty(size, strides, type, device_index(device));
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> layout, std::optional<at::Device> device, std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  TORCH_CHECK(size.size() == stride.size(), "dimensionality of sizes (", size.size(), ") must match dimensionality of strides (",
              stride.size(), ")");
  for (int64_t s : stride) TORCH_CHECK(s >= 0, "strides must not be negative, got ", stride);
  static const int64_t none = 0;
  return make_empty(size, stride.empty() ? at::IntArrayRef(&none, static_cast<size_t>(0)) : stride,
                    dtype.value_or(c10::get_default_dtype_as_scalartype()), device_index(device));
}

// A tensor of zeros without memory, by which forward-mode differentiation says "no tangent".
at::Tensor efficient_zero_tensor(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                                 std::optional<at::Device> device, std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  const auto type = dtype.value_or(c10::get_default_dtype_as_scalartype());
  const c10::Device on(kDevice, static_cast<c10::DeviceIndex>(device_index(device)));
  const size_t nbytes = at::detail::computeStorageNbytesContiguous(size, c10::elementSize(type));
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes, c10::DataPtr(nullptr, on),
                                                       allocator(), /*resizable=*/false);
  auto t = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet({c10::DispatchKey::PrivateUse1, c10::DispatchKey::ZeroTensor}),
      c10::scalarTypeToTypeMeta(type));
  t.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return t;
}

// --- sizes and storages

void require_bytes(const at::Tensor &t) {
  c10::TensorImpl *impl = t.unsafeGetTensorImpl();
  if (impl->numel() == 0) return;
  const size_t needed = at::detail::computeStorageNbytes(impl->sizes(), impl->strides(), impl->itemsize(),
                                                         static_cast<size_t>(impl->storage_offset()));
  if (needed > impl->storage().nbytes()) resize_storage(impl->storage().unsafeGetStorageImpl(), static_cast<int64_t>(needed));
}

const at::Tensor &resize_(const at::Tensor &self, at::IntArrayRef size, std::optional<at::MemoryFormat> memory_format) {
  c10::TensorImpl *impl = self.unsafeGetTensorImpl();
  if (impl->sizes() != size) {
    at::detail::check_size_nonnegative(size);
    impl->set_sizes_contiguous(size);
    require_bytes(self);
  }
  if (memory_format) {
    TORCH_CHECK(*memory_format != at::MemoryFormat::Preserve, "Unsupported memory format ", *memory_format);
    impl->empty_tensor_restride(*memory_format);
  }
  return self;
}

at::Tensor &set_storage(at::Tensor &self, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  at::native::checkSetStorage(self, std::move(source), offset, size, stride);
  c10::TensorImpl *impl = self.unsafeGetTensorImpl();
  if (stride.data() || size.empty()) {
    impl->set_sizes_and_strides(size, stride, offset);
  } else {
    impl->set_storage_offset(offset);
    impl->set_sizes_contiguous(size);
  }
  require_bytes(self);
  if (self.numel()) {
    const tpu_tensor as = view_of(self);
    check(tpu_storage_retype(&as));
  }
  return self;
}

at::Tensor &set_nothing(at::Tensor &self) {
  at::Tensor empty = make_empty({0}, {}, self.scalar_type(), static_cast<int>(self.device().index()));
  return set_storage(self, empty.storage(), 0, {0}, {1});
}

// --- copies

// A dense tensor with its dims in memory order, so that its elements are row-major.
struct Ordered {
  c10::SmallVector<int64_t, 8> sizes, strides;
  tpu_tensor view;
  explicit Ordered(const at::Tensor &t) : view(view_of(t)) {
    if (t.is_contiguous() || !t.is_non_overlapping_and_dense()) return;
    c10::SmallVector<size_t, 8> perm(static_cast<size_t>(t.dim()));
    std::iota(perm.begin(), perm.end(), 0);
    const auto ts = t.strides();
    std::stable_sort(perm.begin(), perm.end(), [&](size_t a, size_t b) { return ts[a] > ts[b]; });
    for (size_t d : perm) {
      sizes.push_back(t.size(static_cast<int64_t>(d)));
      strides.push_back(ts[d]);
    }
    view.sizes = sizes.data();
    view.strides = strides.data();
  }
};

void copy_on_device(const at::Tensor &dst, const at::Tensor &src) {
  const tpu_tensor d = view_of(dst);
  tpu_tensor s = view_of(src);
  at::Tensor expanded;
  if (dst.sizes() != src.sizes()) {
    expanded = src.expand(dst.sizes());
    s = view_of(expanded);
  }
  check(tpu_copy(recording_lane(), &s, &d));
}

void write_to_device(const at::Tensor &dst, const at::Tensor &src) {
  at::Tensor host = src.resolve_conj().resolve_neg();
  if (host.scalar_type() != dst.scalar_type()) host = host.to(dst.scalar_type());
  if (host.sizes() != dst.sizes()) {
    at::Tensor small = make_empty(host.sizes(), {}, dst.scalar_type(), static_cast<int>(dst.device().index()));
    write_to_device(small, host);
    copy_on_device(dst, small);
    return;
  }
  const Ordered to(dst);
  if (to.sizes.empty()) {
    host = host.contiguous();
  } else if (host.strides() != dst.strides()) {
    at::Tensor same = at::empty_strided(dst.sizes(), dst.strides(), host.options());
    same.copy_(host);
    host = same;
  }
  check(tpu_write(recording_lane(), &to.view, host.const_data_ptr()));
}

// Copies to the host that may still be under way. The destination is kept alive until its copy has ended.
struct Reading {
  tpu_event *event;
  at::Tensor host;
};
std::mutex readings_lock;
std::vector<Reading> &readings() {
  static auto *list = new std::vector<Reading>();
  return *list;
}

void read_from_device(const at::Tensor &dst, const at::Tensor &src, bool non_blocking) {
  const Ordered from(src);
  const bool dense = src.is_non_overlapping_and_dense();
  const bool direct = dst.scalar_type() == src.scalar_type() && dst.sizes() == src.sizes() && !dst.is_conj() && !dst.is_neg() &&
                      (dense ? dst.strides() == src.strides() : dst.is_contiguous());
  if (direct && non_blocking && dst.is_pinned()) {
    tpu_event *event = nullptr;
    check(tpu_read_async(lane(), &from.view, dst.mutable_data_ptr(), &event));
    if (!event) return;
    std::lock_guard<std::mutex> lock(readings_lock);
    readings().push_back({event, dst});
  } else if (direct) {
    check(tpu_read(lane(), &from.view, dst.mutable_data_ptr()));
  } else {
    auto options = dst.options().dtype(src.scalar_type()).pinned_memory(false);
    at::Tensor host = dense ? at::empty_strided(src.sizes(), src.strides(), options) : at::empty(src.sizes(), options);
    check(tpu_read(lane(), &from.view, host.mutable_data_ptr()));
    const_cast<at::Tensor &>(dst).copy_(host);
  }
}

}  // namespace

void copy_tensor(const at::Tensor &dst, const at::Tensor &src, bool non_blocking) {
  if (dst.is_same(src)) return;
  at::AutoDispatchBelowADInplaceOrView guard;
  if (src.is_complex() && !dst.is_complex()) {
    TORCH_WARN_ONCE("Casting complex values to real discards the imaginary part");
  }
  at::assert_no_internal_overlap(dst);
  if (is_ours(dst.unsafeGetTensorImpl()) && is_ours(src.unsafeGetTensorImpl())) at::assert_no_partial_overlap(dst, src);
  if (dst.sizes() != src.sizes()) {
    const auto sizes = at::infer_size(dst.sizes(), src.sizes());
    TORCH_CHECK(dst.sizes() == c10::IntArrayRef(sizes), "output with shape ", dst.sizes(), " doesn't match the broadcast shape ",
                c10::IntArrayRef(sizes));
  }
  if (dst.numel() == 0) return;
  at::Tensor from = src;
  const bool to_device = is_ours(dst.unsafeGetTensorImpl()), from_device = is_ours(src.unsafeGetTensorImpl());
  if (from_device && (src.is_conj() || src.is_neg())) {
    if (to_device && dst.is_conj() == src.is_conj() && dst.is_neg() == src.is_neg()) {
      copy_on_device(dst, src);
      return;
    }
    from = resolve(src);
  }
  if (to_device && dst.is_conj()) from = at::conj_physical(from);
  if (to_device && dst.is_neg()) from = at::neg(from);
  if (to_device && from_device)
    copy_on_device(dst, from);
  else if (to_device && from.is_cpu())
    write_to_device(dst, from);
  else if (from_device && dst.is_cpu())
    read_from_device(dst, from, non_blocking);
  else
    TORCH_CHECK_NOT_IMPLEMENTED(false, "copy_ from ", src.device(), " to ", dst.device());
}

namespace {

at::Tensor &copy_(at::Tensor &self, const at::Tensor &src, bool non_blocking) {
  copy_tensor(self, src, non_blocking);
  return self;
}

at::Tensor copy_from(const at::Tensor &self, const at::Tensor &dst, bool non_blocking) {
  copy_tensor(dst, self, non_blocking);
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor &self, const at::Tensor &dst) {
  if (dst.sizes() != self.sizes()) dst.resize_(self.sizes());
  copy_tensor(dst, self, false);
  return dst;
}

at::Tensor &fill_tensor_(at::Tensor &self, const at::Tensor &value) {
  TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ", value.dim(), " dimensions.");
  copy_tensor(self, value, false);
  return self;
}

at::Tensor &zero_(at::Tensor &self) { return self.fill_(0); }

at::Scalar local_scalar_dense(const at::Tensor &self) {
  TORCH_CHECK(self.numel() == 1, "a Tensor with ", self.numel(), " elements cannot be converted to Scalar");
  const tpu_tensor t = view_of(self);
  alignas(16) unsigned char bytes[16];
  check(tpu_read_scalar(lane(), &t, bytes));
  const auto as = [&bytes](auto type) {
    decltype(type) value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
  };
  switch (self.scalar_type()) {
    case at::kBool: return bytes[0] != 0;
    case at::kDouble: return as(double());
    case at::kFloat: return as(float());
    case at::kLong: return as(int64_t());
    case at::kInt: return as(int32_t());
    case at::kShort: return as(int16_t());
    case at::kChar: return as(int8_t());
    case at::kByte: return as(uint8_t());
    case at::kUInt16: return as(uint16_t());
    case at::kUInt32: return as(uint32_t());
    case at::kUInt64: return as(uint64_t());
    case at::kHalf: return as(at::Half());
    case at::kBFloat16: return as(at::BFloat16());
    case at::kComplexFloat: return as(c10::complex<float>());
    case at::kComplexDouble: return as(c10::complex<double>());
    case at::kFloat8_e5m2: return as(at::Float8_e5m2());
    case at::kFloat8_e4m3fn: return as(at::Float8_e4m3fn());
    case at::kFloat8_e5m2fnuz: return as(at::Float8_e5m2fnuz());
    case at::kFloat8_e4m3fnuz: return as(at::Float8_e4m3fnuz());
    case at::kFloat8_e8m0fnu: return as(at::Float8_e8m0fnu());
    default: unsupported_dtype(self.scalar_type());
  }
}

bool equal(const at::Tensor &self, const at::Tensor &other) {
  TORCH_CHECK(self.device() == other.device(), "Cannot compare two tensors on different devices. Got: ", self.device(), " and ",
              other.device());
  TORCH_CHECK(self.dtype() == other.dtype(), "Expected object of data type ", self.dtype(), " but got data type ", other.dtype(),
              " for argument 'other' in call to equal");
  if (self.sizes() != other.sizes()) return false;
  return self.numel() == 0 || at::eq(self, other).all().item<bool>();
}

at::Tensor narrow_copy(const at::Tensor &self, int64_t dim, int64_t start, int64_t length) {
  return self.narrow(dim, start, length).clone(at::MemoryFormat::Contiguous);
}

// How many there are must be known before their places can be a tensor.
at::Tensor nonzero(const at::Tensor &self) {
  const at::Tensor is = self.scalar_type() == at::kBool ? self : at::ne(self, 0);
  const at::Tensor places = at::nonzero_static(self, is.sum().item<int64_t>());
  return places.t().contiguous().t();  // one dim after the other, as on the CPU
}

at::Tensor masked_select(const at::Tensor &self, const at::Tensor &mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_select: expected BoolTensor for mask");
  const auto sizes = at::infer_size(self.sizes(), mask.sizes());
  at::Tensor m = mask.expand(sizes);
  if (m.dim() == 0) m = m.unsqueeze(0);
  c10::List<std::optional<at::Tensor>> indices;
  indices.push_back(m);
  const at::Tensor s = self.expand(sizes);
  return at::index(s.dim() == 0 ? s.unsqueeze(0) : s, indices);
}

void record_stream(at::Tensor &, at::Stream) {}

// Module.to and `parameter.data = tensor` may then exchange CPU and device tensors in place, so that parameters keep their
// identity.
bool has_compatible_shallow_copy_type(const at::Tensor &self, const at::Tensor &from) {
  const auto plain = [](const at::Tensor &t) {
    return t.layout() == at::kStrided && (t.is_cpu() || is_ours(t.unsafeGetTensorImpl())) &&
           !t.key_set().has(c10::DispatchKey::Python);
  };
  return (plain(self) && plain(from)) || self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set());
}

// Asked by nn.TransformerEncoder before it turns a padded batch into a nested tensor, which the device does not have: it stays
// padded.
bool nested_from_mask(const at::Tensor &, const at::Tensor &) { return false; }

// Transforms of torch.func have no rules for the fused operator; the composition they can take apart.
bool is_transformed(const at::Tensor &t) {
  return t.key_set().has_any(c10::DispatchKeySet({c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper}));
}

// torch.nn.attention.sdpa_kernel names the kernels of other devices; any fused one stands for the one there is.
int64_t fused_sdp_choice(const at::Tensor &query, const at::Tensor &key, const at::Tensor &value,
                         const std::optional<at::Tensor> &, double, bool, std::optional<double>, bool) {
  static const bool forward = tpu_op_find("_scaled_dot_product_fused_attention_overrideable") != nullptr;
  static const bool backward = tpu_op_find("_scaled_dot_product_fused_attention_overrideable_backward") != nullptr;
  const at::Context &user = at::globalContext();
  const bool wanted = user.userEnabledFlashSDP() || user.userEnabledMemEfficientSDP() || user.userEnabledCuDNNSDP() ||
                      user.userEnabledOverrideableSDP();
  const bool strided = !query.is_nested() && !key.is_nested() && !value.is_nested() && query.dim() == 4;
  const bool transformed = is_transformed(query) || is_transformed(key) || is_transformed(value);
  const bool fused = wanted && strided && !transformed && forward &&
                     (backward || !(query.requires_grad() || key.requires_grad() || value.requires_grad()));
  const auto otherwise = wanted || user.userEnabledMathSDP() ? at::SDPBackend::math : at::SDPBackend::error;
  return static_cast<int64_t>(fused ? at::SDPBackend::overrideable : otherwise);
}

int64_t fused_sdp_choice_kernel(const at::Tensor &query, const at::Tensor &key, const at::Tensor &value,
                                const std::optional<at::Tensor> &mask, double dropout_p, bool is_causal,
                                std::optional<double> scale, bool enable_gqa) {
  return fused_sdp_choice(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa);
}

}  // namespace

void register_tensor_kernels(torch::Library &m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("_efficientzerotensor", TORCH_FN(efficient_zero_tensor));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("set_", TORCH_FN(set_nothing));
  m.impl("set_.source_Storage", static_cast<at::Tensor &(*)(at::Tensor &, at::Storage)>(&at::native::set_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("is_set_to", TORCH_FN(at::native::is_set_to));
  m.impl("copy_", TORCH_FN(copy_));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  m.impl("equal", TORCH_FN(equal));
  if (!tpu_op_find("nonzero") && tpu_op_find("nonzero_static")) m.impl("nonzero", TORCH_FN(nonzero));
  if (!tpu_op_find("masked_select") && tpu_op_find("index.Tensor")) m.impl("masked_select", TORCH_FN(masked_select));
  if (!tpu_op_find("narrow_copy")) m.impl("narrow_copy", TORCH_FN(narrow_copy));
  m.impl("record_stream", TORCH_FN(record_stream));
  m.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));
  // PyTorch's kernels of the encoder's inference path are compositions, whatever the device in their names.
  m.impl("_native_multi_head_attention", TORCH_FN(at::native::native_multi_head_attention_cpu));
  m.impl("_transformer_encoder_layer_fwd", TORCH_FN(at::native::transformer_encoder_layer_forward));
  m.impl("_nested_tensor_from_mask_left_aligned", TORCH_FN(nested_from_mask));
  m.impl("_fused_sdp_choice", TORCH_FN(fused_sdp_choice_kernel));
  if (!tpu_op_find("zero")) m.impl("zero_", TORCH_FN(zero_));
  if (!tpu_op_find("fill.Tensor")) m.impl("fill_.Tensor", TORCH_FN(fill_tensor_));
}

}  // namespace tpu

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &tpu::fused_sdp_choice)
}

tpu_status bridge_synchronize(int device) {
  tpu_status status = tpu_synchronize(device);
  std::vector<tpu::Reading> done;
  {
    std::lock_guard<std::mutex> lock(tpu::readings_lock);
    done.swap(tpu::readings());
  }
  const tpu_client *client = tpu_runtime_client();
  for (tpu::Reading &r : done) {
    status = tpu_status_join(status, tpu_event_await(client, r.event));
    tpu_event_destroy(client, r.event);
  }
  return status;
}
