// One boxed kernel serves every row of the op table. What it needs to know of an operator is worked out of its schema once,
// at registration; a call then reads its arguments off the stack, asks for the signature, records, and wraps the results.
// The same kernel serves in-place, out= and mutating overloads: their schema says which arguments receive the results.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "bridge/bridge.h"

namespace tpu {
namespace {

using c10::IValue;
using torch::jit::Stack;

enum class Read : uint8_t {
  Nothing,
  Tensor,
  Tensors,
  Number,
  Numbers,
  Int,
  Ints,
  Bool,
  Bools,
  Dtype,
  String,
  Code,
  Device,
  Generator
};

struct Reader {
  Read kind = Read::Nothing;
  bool is_static = false;  // a number whose value is part of the signature
  bool has_usual = false;  // a number for which being the schema's default is part of the signature
  bool is_index = false;   // Tensor?[]: tensors of indices, which may live on the CPU
  int16_t at = -1;         // place among the operator's arguments; -1: it has none
  double usual = 0;
};

// A result of the functional row.
struct Result {
  bool is_list = false;
  bool is_tensor = true;   // else an int, which only the backward pass of the same row sees: 0
  int16_t into = -1;       // argument that receives it; -1: none
  int16_t list_like = -1;  // argument with as many elements, where several results are lists
};

// A return value of the operator.
struct Return {
  bool is_alias = false;
  int16_t from = -1;  // a result, or the argument that is returned
};

// A stack-allocated array that moves to the heap when it grows past N.
template <class T, unsigned N>
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer &) = delete;
  Buffer &operator=(const Buffer &) = delete;
  ~Buffer() {
    if (data_ != fixed_) std::free(data_);
  }
  T *grow(uint32_t n) {
    if (C10_UNLIKELY(size_ + n > capacity_)) enlarge(n);
    T *at = data_ + size_;
    size_ += n;
    return at;
  }
  void shrink(uint32_t n) { size_ -= n; }
  T *data() { return data_; }
  const T *data() const { return data_; }
  uint32_t size() const { return size_; }

 private:
  void enlarge(uint32_t n) {
    uint32_t capacity = std::max(capacity_ * 2, size_ + n);
    T *p = static_cast<T *>(std::malloc(capacity * sizeof(T)));
    if (!p) throw std::bad_alloc();
    std::memcpy(static_cast<void *>(p), data_, size_ * sizeof(T));
    if (data_ != fixed_) std::free(data_);
    data_ = p;
    capacity_ = capacity;
  }
  T *data_ = fixed_;
  uint32_t size_ = 0, capacity_ = N;
  T fixed_[N];
};

[[noreturn]] void fail_devices(c10::Device first, c10::Device second) {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", first, " and ", second,
              "!");
}

constexpr c10::DispatchKeySet kLazyBits({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});

// The arguments of one call.
struct Call {
  Buffer<tpu_arg, 24> args;
  Buffer<tpu_tensor, 16> tensors;
  Buffer<tpu_number, 16> numbers;
  Buffer<tpu_list_number, 8> list_numbers;
  Buffer<int64_t, 48> ints;
  int device = -1;
  bool has_other = false;      // a tensor lives elsewhere
  bool is_elsewhere = false;   // the result's device is not the operands'
  bool has_masks = false;      // a boolean mask stands among indices
  bool takes_scalars = false;  // 0-dim CPU tensors are numbers
  c10::Device first = c10::Device(kDevice), other = c10::Device(kDevice);
  const IValue *generator = nullptr;
  std::vector<at::Tensor> kept;

  void see_device(c10::Device d) {
    if (d.type() == kDevice) {
      if (device < 0) {
        device = d.index();
        if (!has_other)
          first = d;
        else
          fail_devices(other, d);
      } else if (C10_UNLIKELY(device != d.index())) {
        fail_devices(first, d);
      }
      return;
    }
    if (device >= 0) fail_devices(first, d);
    if (has_other && other != d) fail_devices(other, d);
    has_other = true;
    other = d;
  }

  // The device that a factory is asked for; it may be another one than its operand's.
  void see_wish(c10::Device d) {
    if (device < 0)
      device = device_index(d);
    else
      is_elsewhere = d.type() != kDevice || device_index(d) != device;
  }

  void add_tensor(const at::Tensor &t) {
    const c10::TensorImpl *impl = t.unsafeGetTensorImpl();
    if (C10_UNLIKELY(!is_ours(impl))) {
      see_device(t.device());
      return;
    }
    if (device != impl->device().index()) see_device(impl->device());
    if (C10_UNLIKELY(impl->key_set().has_any(kLazyBits))) {
      kept.push_back(resolve(t));
      impl = kept.back().unsafeGetTensorImpl();
    }
    *tensors.grow(1) = view_of(impl);
  }

  void read_tensor(tpu_arg *arg, const at::Tensor &t) {
    if (!t.defined()) return;
    const c10::TensorImpl *impl = t.unsafeGetTensorImpl();
    if (!is_ours(impl) && impl->dim() == 0 && t.is_cpu() && (takes_scalars || impl->is_wrapped_number())) {
      read_scalar_tensor(arg, t);
      return;
    }
    arg->kind = TPU_ARG_TENSOR;
    arg->first = tensors.size();
    add_tensor(t);
  }

  void read_scalar_tensor(tpu_arg *arg, const at::Tensor &t) {
    const c10::TensorImpl *impl = t.unsafeGetTensorImpl();
    arg->kind = TPU_ARG_NUMBER;
    arg->flags = impl->is_wrapped_number() ? TPU_ARG_WRAPPED : TPU_ARG_ZERO_DIM;
    arg->first = numbers.size();
    tpu_number *n = numbers.grow(1);
    const auto type = impl->dtype().toScalarType();
    const char *p = static_cast<const char *>(impl->storage().data()) + impl->storage_offset() * impl->itemsize();
    if (type == c10::kDouble && !impl->key_set().has_any(kLazyBits)) {
      n->dtype = TPU_F64;
      std::memcpy(&n->f, p, sizeof n->f);
    } else if (type == c10::kLong) {
      n->dtype = TPU_I64;
      std::memcpy(&n->i, p, sizeof n->i);
    } else {
      put_number(n, t.item());
    }
    arg->dtype = static_cast<uint8_t>(dtype_of(type));
    arg->i = n->i;
  }

  static bool is_mask(const at::Tensor &t) {
    return t.defined() && (t.scalar_type() == at::kBool || t.scalar_type() == at::kByte);
  }

  void read_tensors(tpu_arg *arg, const IValue &v, bool is_index) {
    auto list = v.toListRef();
    arg->kind = TPU_ARG_TENSORS;
    arg->n = static_cast<uint32_t>(list.size());
    arg->first = tensors.size();
    for (const IValue &e : list) {
      if (is_index && e.isTensor() && is_mask(e.toTensor())) has_masks = true;
      if (e.isNone() || !e.toTensor().defined()) {
        *tensors.grow(1) = tpu_tensor{nullptr, TPU_DTYPE_NONE, 0, nullptr, nullptr, 0};
      } else if (is_index && device >= 0 && e.toTensor().is_cpu()) {
        at::Tensor on_device = make_empty(e.toTensor().sizes(), {}, e.toTensor().scalar_type(), device);
        copy_tensor(on_device, e.toTensor(), false);
        kept.push_back(on_device);
        add_tensor(on_device);
      } else {
        add_tensor(e.toTensor());
      }
    }
  }

  static void put_number(tpu_number *n, const c10::Scalar &s) {
    if (s.isFloatingPoint()) {
      n->dtype = TPU_F64;
      n->f = s.toDouble();
    } else if (s.isComplex()) {
      auto c = s.toComplexDouble();
      n->dtype = TPU_C128;
      n->c[0] = c.real();
      n->c[1] = c.imag();
    } else if (s.isBoolean()) {
      n->dtype = TPU_BOOL;
      n->i = s.toBool();
    } else {
      n->dtype = TPU_I64;
      n->i = s.type() == c10::kUInt64 ? static_cast<int64_t>(s.toUInt64()) : s.toLong();
    }
  }

  static void put_number(tpu_number *n, const IValue &v) {
    if (v.isDouble()) {
      n->dtype = TPU_F64;
      n->f = v.toDouble();
    } else if (v.isInt()) {
      n->dtype = TPU_I64;
      n->i = v.toInt();
    } else if (v.isBool()) {
      n->dtype = TPU_BOOL;
      n->i = v.toBool();
    } else {
      put_number(n, v.toScalar());
    }
  }

  template <class Number>
  void read_number(tpu_arg *arg, const Reader &r, const Number &v) {
    arg->kind = TPU_ARG_NUMBER;
    arg->first = numbers.size();
    tpu_number *n = numbers.grow(1);
    put_number(n, v);
    arg->dtype = static_cast<uint8_t>(n->dtype);
    if (r.is_static) {
      arg->flags |= TPU_ARG_STATIC;
      arg->i = n->i;
    }
    if (r.has_usual && n->dtype != TPU_C128 && (n->dtype == TPU_F64 ? n->f : static_cast<double>(n->i)) == r.usual)
      arg->flags |= TPU_ARG_IS_DEFAULT;
  }

  void read_numbers(tpu_arg *arg, const Reader &r, const IValue &v) {
    auto list = v.toListRef();
    arg->kind = TPU_ARG_NUMBERS;
    arg->n = static_cast<uint32_t>(list.size());
    arg->first = numbers.size();
    if (r.is_static) arg->flags |= TPU_ARG_STATIC;
    arg->i = list_numbers.size();
    for (const IValue &e : list) {
      tpu_number *n = numbers.grow(1);
      put_number(n, e);
      tpu_list_number *known = list_numbers.grow(1);
      known->dtype = static_cast<uint8_t>(n->dtype);
      known->i = n->i;
    }
    if (!arg->n) return;
    arg->dtype = list_numbers.data()[arg->i].dtype;
    // Optimizers pass one number for every parameter: it travels once.
    const tpu_number *all = numbers.data() + arg->first;
    uint32_t same = 1;
    while (same < arg->n && all[same].dtype == all[0].dtype && all[same].dtype != TPU_C128 && all[same].i == all[0].i) same++;
    if (arg->n > 1 && same == arg->n && !r.is_static) {
      arg->flags |= TPU_ARG_UNIFORM;
      numbers.shrink(arg->n - 1);
    }
  }

  void read_ints(tpu_arg *arg, const IValue &v, tpu_arg_kind kind) {
    auto list = v.isList() ? v.toListRef() : c10::ArrayRef<IValue>(v);
    arg->kind = static_cast<uint8_t>(kind);
    arg->n = static_cast<uint32_t>(list.size());
    arg->first = ints.size();
    int64_t *p = ints.grow(arg->n);
    for (const IValue &e : list) *p++ = read_int(e);
  }

  static int64_t read_int(const IValue &v) {
    if (v.isInt()) return v.toInt();
    if (v.isBool()) return v.toBool();
    return v.toSymInt().guard_int(__FILE__, __LINE__);
  }

  void read(const Reader &, const at::Tensor &t) {
    tpu_arg *arg = args.grow(1);
    *arg = tpu_arg{};
    read_tensor(arg, t);
  }
  void read(const Reader &r, const at::Scalar &s) {
    tpu_arg *arg = args.grow(1);
    *arg = tpu_arg{};
    read_number(arg, r, s);
  }

  void read(const Reader &r, const IValue &v) {
    tpu_arg *arg = args.grow(1);
    *arg = tpu_arg{};
    if (v.isNone()) return;
    switch (r.kind) {
      case Read::Nothing: break;
      case Read::Tensor: read_tensor(arg, v.toTensor()); break;
      case Read::Tensors: read_tensors(arg, v, r.is_index); break;
      case Read::Number: read_number(arg, r, v); break;
      case Read::Numbers: read_numbers(arg, r, v); break;
      case Read::Int:
        arg->kind = TPU_ARG_INT;
        arg->i = read_int(v);
        break;
      case Read::Bool:
        arg->kind = TPU_ARG_BOOL;
        arg->i = v.isBool() ? v.toBool() : v.toSymBool().guard_bool(__FILE__, __LINE__);
        break;
      case Read::Ints: read_ints(arg, v, TPU_ARG_INTS); break;
      case Read::Bools: read_ints(arg, v, TPU_ARG_BOOLS); break;
      case Read::Dtype:
        arg->kind = TPU_ARG_DTYPE;
        arg->dtype = static_cast<uint8_t>(dtype_of(static_cast<c10::ScalarType>(v.toInt())));
        break;
      case Read::String:
        arg->kind = TPU_ARG_STRING;
        arg->n = static_cast<uint32_t>(v.toStringRef().size());
        arg->str = v.toStringRef().c_str();
        break;
      case Read::Code:
        arg->kind = TPU_ARG_OTHER;
        arg->i = v.toInt();
        break;
      case Read::Device:
        arg->kind = TPU_ARG_OTHER;
        see_wish(v.toDevice());
        break;
      case Read::Generator:
        arg->kind = TPU_ARG_OTHER;
        generator = &v;
        break;
    }
  }

  // Buffers may have moved while they grew, so pointers into them are set last.
  void settle() {
    for (tpu_arg *a = args.data(), *end = a + args.size(); a != end; a++) {
      if (a->kind == TPU_ARG_INTS || a->kind == TPU_ARG_BOOLS) a->ints = ints.data() + a->first;
      if (a->kind == TPU_ARG_NUMBERS) a->numbers = list_numbers.data() + a->i;
    }
  }
};

thread_local int own_precision = -1;

// Precision is process-wide in the runtime and a thread's (or PyTorch's) choice here: it is set before each call it could
// matter to.
void apply_precision() {
  tpu_precision wanted;
  if (own_precision >= 0) {
    wanted = static_cast<tpu_precision>(own_precision);
  } else {
    const auto p = at::globalContext().float32MatmulPrecision();
    wanted = p == at::Float32MatmulPrecision::HIGHEST ? TPU_PRECISION_HIGHEST
             : p == at::Float32MatmulPrecision::HIGH  ? TPU_PRECISION_HIGH
                                                      : TPU_PRECISION_DEFAULT;
  }
  if (wanted != tpu_precision_get()) tpu_precision_set(wanted);
}

class Kernel final : public c10::OperatorKernel {
 public:
  const tpu_row *row = nullptr;
  int n_stack = 0;
  bool takes_scalars = false;
  bool resizes = false;     // out=: takes the results' sizes
  bool simple = false;      // one tensor returned, nothing written
  bool idempotent = false;  // writes one number everywhere, so the destination's elements may share memory
  bool contracts = false;   // may contain products whose precision can be chosen
  int16_t only_if = -1;     // results are stored only if this argument is true
  int16_t device_of = -1;   // argument that tells the device where no operand does
  std::vector<Reader> readers;
  std::vector<Result> results;
  std::vector<Return> returns;

  void operator()(const c10::OperatorHandle &op, c10::DispatchKeySet keys, Stack *stack) {
    IValue *frame = stack->data() + (stack->size() - static_cast<size_t>(n_stack));
    Call c;
    c.takes_scalars = takes_scalars;
    for (const Reader &r : readers) {
      if (C10_LIKELY(r.at >= 0))
        c.read(r, frame[r.at]);
      else
        read_absent(c, r, frame);
    }
    if (C10_UNLIKELY(c.is_elsewhere)) {  // zeros_like(x, device=...): PyTorch's composite kernel, which all devices share
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
      return;
    }
    tpu_call call{};
    std::unique_lock<std::mutex> random = prepare(c, frame, &call);
    const tpu_signature *signature;
    if (tpu_status status = tpu_signature_get(&call, &signature); C10_UNLIKELY(status != nullptr)) {
      if (!c.has_masks || tpu_status_code(status) != TPU_UNIMPLEMENTED) {
        if (!simple) refuse_overlaps(frame, status);
        raise(status);
      }
      tpu_status_release(status);
      if (random) random.unlock();
      expand_masks(frame);
      (*this)(op, keys, stack);
      return;
    }
    if (C10_LIKELY(simple)) {
      tpu_storage *out = nullptr;
      check(tpu_record(lane(), &call, signature, nullptr, &out));
      IValue result(take(out, tpu_signature_output(signature, 0)));
      torch::jit::drop(*stack, static_cast<size_t>(n_stack));
      stack->push_back(std::move(result));
      return;
    }
    record_general(c, &call, signature, frame, stack, random);
  }

  // A functional call of one tensor as result whose arguments were read elsewhere.
  at::Tensor run(Call &c) const {
    tpu_call call{};
    const std::unique_lock<std::mutex> random = prepare(c, nullptr, &call);
    const tpu_signature *signature;
    check(tpu_signature_get(&call, &signature));
    tpu_storage *out = nullptr;
    check(tpu_record(lane(), &call, signature, nullptr, &out));
    return take(out, tpu_signature_output(signature, 0));
  }

 private:
  // Describes the call by the arguments read. The lock is the generator's, if the row draws from one.
  std::unique_lock<std::mutex> prepare(Call &c, const IValue *frame, tpu_call *call) const {
    c.settle();
    if (C10_UNLIKELY(c.device < 0)) find_device(c, frame);
    call->row = row;
    call->device = c.device;
    call->n_args = static_cast<int>(c.args.size());
    call->n_tensors = static_cast<int>(c.tensors.size());
    call->n_numbers = static_cast<int>(c.numbers.size());
    call->n_returns = static_cast<int>(results.size());
    call->args = c.args.data();
    call->tensors = c.tensors.data();
    call->numbers = c.numbers.data();
    call->default_dtype = static_cast<uint8_t>(dtype_of(c10::get_default_dtype_as_scalartype()));
    if (contracts) apply_precision();
    return row->random ? lock_generator(c, call) : std::unique_lock<std::mutex>();
  }

  static at::Tensor take(tpu_storage *storage, const tpu_result *r) {
    if (!storage) return at::Tensor();
    return wrap(storage, r->dtype, {r->sizes, static_cast<size_t>(r->rank)}, {r->strides, static_cast<size_t>(r->rank)});
  }

  // A factory's dtype comes from `out`; everything else that an overload leaves out is at its default.
  void read_absent(Call &c, const Reader &r, const IValue *frame) const {
    tpu_arg *arg = c.args.grow(1);
    *arg = tpu_arg{};
    if (r.kind != Read::Dtype || device_of < 0) return;
    arg->kind = TPU_ARG_DTYPE;
    arg->dtype = static_cast<uint8_t>(dtype_of(frame[device_of].toTensor().scalar_type()));
  }

  void find_device(Call &c, const IValue *frame) const {
    if (device_of >= 0 && frame[device_of].isTensor()) c.see_device(frame[device_of].toTensor().device());
    if (c.has_other) fail_devices(c.other, c10::Device(kDevice, static_cast<c10::DeviceIndex>(current_device())));
    if (c.device < 0) c.device = current_device();
  }

  static std::unique_lock<std::mutex> lock_generator(const Call &c, tpu_call *call) {
    const at::Generator &g = c.generator ? c.generator->toGenerator() : default_generator(c.device);
    TORCH_CHECK(g.device().type() == kDevice, "Expected a '", c10::DeviceTypeName(kDevice, true),
                "' device type for generator but found '", g.device().type(), "'");
    auto *impl = static_cast<GeneratorImpl *>(g.unsafeGetGeneratorImpl());
    std::unique_lock<std::mutex> lock(impl->mutex_);
    call->generator = &impl->state;
    return lock;
  }

  // Replaces boolean masks among indices by the places where they are true: the shape of the result depends on how many
  // there are, so the host must know.
  void expand_masks(IValue *frame) const {
    const at::Tensor &self = frame[0].toTensor();
    for (const Reader &r : readers) {
      if (!r.is_index) continue;
      c10::List<std::optional<at::Tensor>> expanded;
      for (const IValue &e : frame[r.at].toListRef()) {
        if (!e.isTensor() || !Call::is_mask(e.toTensor())) {
          expanded.push_back(e.toOptional<at::Tensor>());
          continue;
        }
        const at::Tensor &mask = e.toTensor();
        const auto dim = static_cast<int64_t>(expanded.size());
        for (int64_t j = 0; j < mask.dim(); j++)
          TORCH_CHECK_INDEX(dim + j < self.dim() && mask.size(j) == self.size(dim + j), "The shape of the mask ", mask.sizes(),
                            " at index ", j, " does not match the shape of the indexed tensor ", self.sizes(), " at index ",
                            dim + j);
        const at::Tensor places = mask.nonzero();
        for (int64_t j = 0; j < mask.dim(); j++) expanded.push_back(places.select(1, j));
      }
      frame[r.at] = std::move(expanded);
    }
  }

  bool is_argument(const at::Tensor &t, const IValue *frame) const {
    const auto is_t = [&t](const IValue &v) { return v.isTensor() && v.toTensor().is_same(t); };
    for (const Reader &r : readers) {
      if (r.at < 0) continue;
      const IValue &v = frame[r.at];
      if (r.kind == Read::Tensor && is_t(v)) return true;
      if (r.kind == Read::Tensors && v.isList() && std::any_of(v.toListRef().begin(), v.toListRef().end(), is_t)) return true;
    }
    return false;
  }

  void check_overlap(const at::Tensor &t, const IValue *frame) const {
    if (!idempotent) at::assert_no_internal_overlap(t);
    for (const Reader &reader : readers) {
      if (reader.kind != Read::Tensor || reader.at < 0 || !frame[reader.at].isTensor()) continue;
      const at::Tensor &input = frame[reader.at].toTensor();
      if (input.defined() && !input.is_same(t) && input.is_alias_of(t)) at::assert_no_partial_overlap(t, input);
    }
  }

  // Of a call that fails with `status`: TensorIterator looks at the memory before it looks at sizes and dtypes.
  void refuse_overlaps(const IValue *frame, tpu_status status) const {
    try {
      for (const Result &result : results)
        if (result.into >= 0 && !result.is_list && frame[result.into].isTensor())
          check_overlap(frame[result.into].toTensor(), frame);
    } catch (...) {
      tpu_status_release(status);
      throw;
    }
  }

  // What an in-place or out= form promises, in the order of TensorIterator's checks.
  void check_destination(const Call &c, const at::Tensor &t, const tpu_result *r, const IValue *frame) const {
    if (!is_ours(t.unsafeGetTensorImpl()) || t.device().index() != c.device)
      fail_devices(c10::Device(kDevice, static_cast<c10::DeviceIndex>(c.device)), t.device());
    check_overlap(t, frame);
    const c10::IntArrayRef sizes(r->sizes, static_cast<size_t>(r->rank));
    const bool resize = t.sizes() != sizes;
    if (C10_UNLIKELY(resize && (!resizes || is_argument(t, frame))))
      TORCH_CHECK(false, "output with shape ", t.sizes(), " doesn't match the broadcast shape ", sizes);
    if (C10_UNLIKELY(!tpu_dtype_can_cast(r->dtype, dtype_of(t.scalar_type()))))
      TORCH_CHECK(false, "result type ", scalar_type_of(r->dtype), " can't be cast to the desired output type ", t.scalar_type());
    if (resize && at::native::resize_output(t, sizes))
      t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, {r->strides, static_cast<size_t>(r->rank)});
  }

  // Number of elements of result j, of `n` signature outputs.
  int list_length(const Result &result, int n, const IValue *frame) const {
    if (result.into >= 0) return static_cast<int>(frame[result.into].toListRef().size());
    if (result.list_like >= 0) return static_cast<int>(frame[result.list_like].toListRef().size());
    return n - static_cast<int>(results.size()) + 1;
  }

  void record_general(const Call &c, tpu_call *call, const tpu_signature *signature, IValue *frame, Stack *stack,
                      std::unique_lock<std::mutex> &random) const {
    const int n = tpu_signature_outputs(signature);
    Buffer<tpu_tensor, 8> into;
    Buffer<tpu_storage *, 8> out;
    std::fill_n(into.grow(static_cast<uint32_t>(n)), n, tpu_tensor{});
    std::fill_n(out.grow(static_cast<uint32_t>(n)), n, nullptr);
    const bool stores = only_if < 0 || frame[only_if].toBool();
    bool any = false;
    int at = 0;
    for (const Result &result : results) {
      const int length = result.is_list ? list_length(result, n, frame) : 1;
      if (result.into >= 0 && stores && !frame[result.into].isNone()) {
        const IValue &v = frame[result.into];
        for (int k = 0; k < length; k++) {
          TORCH_INTERNAL_ASSERT(at + k < n, row->aten, ": fewer results than the schema has");
          const at::Tensor &t = result.is_list ? v.toListRef()[static_cast<size_t>(k)].toTensor() : v.toTensor();
          const tpu_result *r = tpu_signature_output(signature, at + k);
          if (!t.defined() || r->undefined) continue;
          check_destination(c, t, r, frame);
          any = true;
        }
        // Resizing one destination may reshape another that is the same tensor, so views are taken in a second pass.
        for (int k = 0; k < length; k++) {
          const at::Tensor &t = result.is_list ? v.toListRef()[static_cast<size_t>(k)].toTensor() : v.toTensor();
          if (t.defined() && !tpu_signature_output(signature, at + k)->undefined) into.data()[at + k] = view_of(t);
        }
      }
      at += length;
    }
    check(tpu_record(lane(), call, signature, any ? into.data() : nullptr, out.data()));
    if (random) random.unlock();

    c10::SmallVector<IValue, 4> values;
    for (const Return &ret : returns) {
      if (ret.is_alias) {
        values.push_back(frame[ret.from]);
        continue;
      }
      int first = 0;
      for (int j = 0; j < ret.from; j++)
        first += results[static_cast<size_t>(j)].is_list ? list_length(results[static_cast<size_t>(j)], n, frame) : 1;
      const Result &result = results[static_cast<size_t>(ret.from)];
      if (!result.is_tensor) {
        values.emplace_back(int64_t{0});
        continue;
      }
      if (!result.is_list) {
        values.emplace_back(take(std::exchange(out.data()[first], nullptr), tpu_signature_output(signature, first)));
        continue;
      }
      c10::List<at::Tensor> list;
      const int length = list_length(result, n, frame);
      list.reserve(static_cast<size_t>(length));
      for (int k = first; k < first + length; k++)
        list.push_back(take(std::exchange(out.data()[k], nullptr), tpu_signature_output(signature, k)));
      values.emplace_back(std::move(list));
    }
    for (int k = 0; k < n; k++) tpu_storage_release(out.data()[k]);
    torch::jit::drop(*stack, static_cast<size_t>(n_stack));
    for (IValue &v : values) stack->push_back(std::move(v));
  }
};

// --- from schemas to kernels

Read read_of(c10::TypePtr type, bool *out_optional_elements) {
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  switch (type->kind()) {
    case c10::TypeKind::TensorType: return Read::Tensor;
    case c10::TypeKind::NumberType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::SymFloatType:
    case c10::TypeKind::ComplexType: return Read::Number;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType: return Read::Int;
    case c10::TypeKind::BoolType:
    case c10::TypeKind::SymBoolType: return Read::Bool;
    case c10::TypeKind::StringType: return Read::String;
    case c10::TypeKind::ScalarTypeType: return Read::Dtype;
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::MemoryFormatType: return Read::Code;
    case c10::TypeKind::DeviceObjType: return Read::Device;
    case c10::TypeKind::GeneratorType: return Read::Generator;
    case c10::TypeKind::ListType: {
      auto element = type->castRaw<c10::ListType>()->getElementType();
      bool nested = false;
      *out_optional_elements = element->kind() == c10::TypeKind::OptionalType;
      switch (read_of(element, &nested)) {
        case Read::Tensor: return Read::Tensors;
        case Read::Number: return Read::Numbers;
        case Read::Int: return Read::Ints;
        case Read::Bool: return Read::Bools;
        default: return Read::Nothing;
      }
    }
    default: return Read::Nothing;
  }
}

bool is_tensor_list(const c10::TypePtr &type) {
  bool ignored = false;
  return read_of(type, &ignored) == Read::Tensors;
}

// Tensor and Tensor? correspond.
bool same_type(const c10::TypePtr &a, const c10::TypePtr &b) {
  bool ignored = false;
  return *a == *b || (read_of(a, &ignored) == Read::Tensor && read_of(b, &ignored) == Read::Tensor);
}

bool is_written(const c10::Argument &a) { return a.alias_info() && a.alias_info()->isWrite(); }

// Operators whose tensors PyTorch lets be 0-dim CPU tensors although no TensorIterator sees them.
bool mixes_scalars(const tpu_row *row) {
  if (row->strides == TPU_STRIDES_ELEMENTWISE || row->strides == TPU_STRIDES_ELEMENTWISE_SCALAR) return true;
  static const std::unordered_set<std::string_view> names = {
      "index_put",           "_index_put_impl",     "masked_fill.Tensor",    "fill.Tensor", "_foreach_add.Tensor",
      "_foreach_mul.Tensor", "_foreach_div.Tensor", "index_fill.int_Tensor", "copy",        "_unsafe_index_put"};
  return names.count(row->aten) != 0;
}

struct RowInfo {
  const tpu_row *row;
  c10::OperatorHandle op;
};

std::unique_ptr<Kernel> functional_kernel(const RowInfo &info) {
  const c10::FunctionSchema &schema = info.op.schema();
  auto k = std::make_unique<Kernel>();
  k->row = info.row;
  k->n_stack = static_cast<int>(schema.arguments().size());
  k->takes_scalars = mixes_scalars(info.row);
  const std::string_view name(info.row->aten);
  k->idempotent = name == "fill.Scalar" || name == "fill.Tensor" || name == "zero";
  k->contracts = info.row->strides != TPU_STRIDES_ELEMENTWISE && info.row->strides != TPU_STRIDES_ELEMENTWISE_SCALAR;
  std::vector<int16_t> lists;
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    const c10::Argument &a = schema.arguments()[i];
    Reader r;
    r.at = static_cast<int16_t>(i);
    r.kind = read_of(a.real_type(), &r.is_index);
    if (r.kind == Read::Tensors)
      lists.push_back(r.at);
    else
      r.is_index = false;
    if (i < 32) {
      r.is_static = (info.row->statics >> i & 1) != 0;
      if ((info.row->defaults >> i & 1) != 0 && a.default_value() && !a.default_value()->isNone()) {
        r.has_usual = true;
        r.usual = a.default_value()->toScalar().toDouble();
      }
    }
    k->readers.push_back(r);
  }
  size_t n_lists = 0;
  for (const c10::Argument &a : schema.returns()) {
    Result result;
    bool ignored = false;
    const Read kind = read_of(a.real_type(), &ignored);
    result.is_list = kind == Read::Tensors;
    result.is_tensor = kind == Read::Tensors || kind == Read::Tensor;
    if (result.is_list) {
      if (n_lists < lists.size()) result.list_like = lists[n_lists];
      n_lists++;
    }
    k->returns.push_back({false, static_cast<int16_t>(k->results.size())});
    k->results.push_back(result);
  }
  if (n_lists == 1)  // its length follows from the number of outputs
    for (Result &result : k->results) result.list_like = -1;
  k->simple = n_lists == 0 && k->results.size() == 1 && k->results[0].is_tensor;
  return k;
}

bool is_factory_option(const std::string &name) {
  return name == "dtype" || name == "layout" || name == "device" || name == "pin_memory" || name == "memory_format";
}

// The kernel of an overload that writes arguments, computed by a functional row; null if they do not correspond. Functional
// results stand in this order: what `out=` arguments receive or the overload returns anew, then the other written arguments.
std::unique_ptr<Kernel> derived_kernel(const RowInfo &info, const c10::FunctionSchema &schema,
                                       const std::vector<int> &also_written = {}) {
  const auto &args = schema.arguments();
  const auto &pure = info.op.schema().arguments();
  std::vector<int16_t> outs, mutated, inputs;
  for (size_t i = 0; i < args.size(); i++) {
    const bool listed = std::find(also_written.begin(), also_written.end(), static_cast<int>(i)) != also_written.end();
    if (is_written(args[i]) && args[i].kwarg_only())
      outs.push_back(static_cast<int16_t>(i));
    else
      inputs.push_back(static_cast<int16_t>(i));
    if (listed || (is_written(args[i]) && !args[i].kwarg_only())) mutated.push_back(static_cast<int16_t>(i));
  }
  if (outs.empty() && mutated.empty()) return nullptr;

  auto k = functional_kernel(info);
  size_t next = 0;
  for (size_t i = 0; i < pure.size(); i++) {
    if (next < inputs.size() && same_type(pure[i].real_type(), args[static_cast<size_t>(inputs[next])].real_type())) {
      k->readers[i].at = inputs[next++];
    } else if (is_factory_option(pure[i].name())) {
      k->readers[i].at = -1;
    } else {
      return nullptr;
    }
  }
  if (next != inputs.size()) return nullptr;

  std::vector<int16_t> fresh;
  k->returns.clear();
  for (const c10::Argument &r : schema.returns()) {
    if (!r.alias_info()) {
      k->returns.push_back({false, static_cast<int16_t>(fresh.size())});
      fresh.push_back(-1);
      continue;
    }
    for (size_t i = 0; i < args.size(); i++)
      if (is_written(args[i]) && args[i].alias_info()->beforeSets() == r.alias_info()->beforeSets())
        k->returns.push_back({true, static_cast<int16_t>(i)});
  }
  if (!outs.empty() && !fresh.empty()) return nullptr;
  std::vector<int16_t> targets = outs.empty() ? fresh : outs;
  targets.insert(targets.end(), mutated.begin(), mutated.end());
  if (targets.size() != k->results.size() || k->returns.size() != schema.returns().size()) return nullptr;
  for (size_t j = 0; j < targets.size(); j++) {
    k->results[j].into = targets[j];
    if (targets[j] >= 0 && is_tensor_list(args[static_cast<size_t>(targets[j])].real_type()) != k->results[j].is_list)
      return nullptr;
  }
  k->n_stack = static_cast<int>(args.size());
  k->resizes = !outs.empty();
  k->simple = false;
  if (!outs.empty()) k->device_of = outs[0];
  return k;
}

// --- operators without a kernel

std::atomic<bridge_fallback> fallback_policy{BRIDGE_FALLBACK_WARN};
std::atomic<bridge_decompose_fn> decompose{nullptr};
std::mutex fallback_lock;
std::map<std::string, uint64_t> &fallback_calls() {
  static auto *calls = new std::map<std::string, uint64_t>();
  return *calls;
}
std::map<std::string, std::string> &kernel_names() {
  static auto *names = new std::map<std::string, std::string>();
  return *names;
}

// The CPU refuses a generator of ours; one with the same seed, advanced with it, takes its place.
void replace_generator(Stack *stack, size_t n) {
  for (size_t i = stack->size() - n; i < stack->size(); i++) {
    IValue &v = (*stack)[i];
    if (!v.isGenerator() || v.toGenerator().device().type() != kDevice) continue;
    auto *impl = static_cast<GeneratorImpl *>(v.toGenerator().unsafeGetGeneratorImpl());
    std::lock_guard<std::mutex> lock(impl->mutex_);
    v = at::make_generator<at::CPUGeneratorImpl>(impl->state.seed + impl->state.offset);
    impl->state.offset += 4;
  }
}

// The functional overload whose kernel can serve an out= overload that has none.
std::optional<c10::OperatorHandle> functional_of(const c10::OperatorHandle &op) {
  const c10::FunctionSchema &schema = op.schema();
  std::vector<c10::TypePtr> inputs;
  size_t outs = 0;
  for (const c10::Argument &a : schema.arguments()) {
    if (!is_written(a))
      inputs.push_back(a.real_type());
    else if (!a.kwarg_only())
      return std::nullopt;
    else
      outs++;
  }
  if (outs == 0 || outs != schema.returns().size()) return std::nullopt;
  auto &dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName &name : dispatcher.getAllOpNames()) {
    if (name.name != op.operator_name().name) continue;
    auto other = dispatcher.findSchema(name);
    if (!other || other->schema().arguments().size() != inputs.size() || other->schema().returns().size() != outs) continue;
    // A composite kernel may be made of the out= overload itself.
    if (!other->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) continue;
    bool same = true;
    for (size_t i = 0; i < inputs.size(); i++) {
      const c10::Argument &a = other->schema().arguments()[i];
      same = same && !is_written(a) && same_type(a.real_type(), inputs[i]);
    }
    for (const c10::Argument &r : other->schema().returns()) same = same && !is_tensor_list(r.real_type());
    if (same) return other;
  }
  return std::nullopt;
}

void call_functional(const c10::OperatorHandle &functional, const c10::OperatorHandle &op, c10::DispatchKeySet keys,
                     Stack *stack) {
  const auto &args = op.schema().arguments();
  IValue *frame = stack->data() + (stack->size() - args.size());
  Stack inner;
  std::vector<at::Tensor> outs;
  for (size_t i = 0; i < args.size(); i++) {
    if (is_written(args[i]))
      outs.push_back(frame[i].toTensor());
    else
      inner.push_back(frame[i]);
  }
  functional.redispatchBoxed(keys, &inner);
  for (size_t k = 0; k < outs.size(); k++) {
    const at::Tensor result = inner[k].toTensor();
    TORCH_CHECK(c10::canCast(result.scalar_type(), outs[k].scalar_type()), "result type ", result.scalar_type(),
                " can't be cast to the desired output type ", outs[k].scalar_type());
    at::native::resize_output(outs[k], result.sizes());
    copy_tensor(outs[k], result, false);
  }
  torch::jit::drop(*stack, args.size());
  for (at::Tensor &out : outs) stack->emplace_back(std::move(out));
}

void fallback(const c10::OperatorHandle &op, c10::DispatchKeySet keys, Stack *stack) {
  if (auto functional = functional_of(op)) {
    call_functional(*functional, op, keys, stack);
    return;
  }
  const c10::OperatorName &op_name = op.operator_name();
  const std::string name = c10::toString(op_name);
  bool first;
  {
    std::lock_guard<std::mutex> lock(fallback_lock);
    first = fallback_calls().emplace(name, 0).second;
  }
  if (first) {
    bridge_decompose_fn find = decompose.load();
    if (find && find(op_name.name.c_str(), op_name.overload_name.c_str())) {
      {
        std::lock_guard<std::mutex> lock(fallback_lock);
        fallback_calls().erase(name);
      }
      op.redispatchBoxed(keys, stack);
      return;
    }
  }
  const bridge_fallback policy = fallback_policy.load();
  TORCH_CHECK_NOT_IMPLEMENTED(policy != BRIDGE_FALLBACK_ERROR, "The operator '", name, "' is not implemented for the ",
                              c10::DeviceTypeName(kDevice, true),
                              " device, and TORCH_TPU_CPU_FALLBACK=error forbids running it on the CPU.");
  if (first && policy == BRIDGE_FALLBACK_WARN)
    TORCH_WARN("The operator '", name, "' is not implemented for the ", c10::DeviceTypeName(kDevice, true),
               " device and runs on the CPU, which is slow. TORCH_TPU_CPU_FALLBACK=error turns this warning into an error, "
               "TORCH_TPU_CPU_FALLBACK=silent hides it.");
  {
    std::lock_guard<std::mutex> lock(fallback_lock);
    fallback_calls()[name]++;
  }
  replace_generator(stack, op.schema().arguments().size());
  at::native::cpu_fallback(op, stack);
}

std::string base_of(const std::string &aten) { return aten.substr(0, aten.find('.')); }

// The commonest signatures without a stack: a tensor that moves to one has its references counted, for which PyTorch takes
// the GIL. The kernel lives as long as the process.
template <class... Args>
torch::CppFunction direct(std::unique_ptr<Kernel> owned) {
  const Kernel *kernel = owned.release();
  return torch::CppFunction([kernel](Args... args) -> at::Tensor {
    Call c;
    c.takes_scalars = kernel->takes_scalars;
    const Reader *reader = kernel->readers.data();
    (c.read(*reader++, args), ...);
    return kernel->run(c);
  });
}

void add(torch::Library &aten, const std::string &name, std::unique_ptr<Kernel> kernel,
         const c10::FunctionSchema *functional = nullptr) {
  using T = const at::Tensor &;
  using S = const at::Scalar &;
  kernel_names()[name] = kernel->row->aten;
  std::string kinds;
  if (functional && kernel->simple) {
    for (const c10::Argument &a : functional->arguments()) {
      const auto kind = a.real_type()->kind();
      kinds += kind == c10::TypeKind::TensorType ? 'T' : kind == c10::TypeKind::NumberType ? 'S' : '?';
    }
  }
  if (kinds == "T") return (void)aten.impl(name.c_str(), direct<T>(std::move(kernel)));
  if (kinds == "TT") return (void)aten.impl(name.c_str(), direct<T, T>(std::move(kernel)));
  if (kinds == "TS") return (void)aten.impl(name.c_str(), direct<T, S>(std::move(kernel)));
  if (kinds == "TTT") return (void)aten.impl(name.c_str(), direct<T, T, T>(std::move(kernel)));
  if (kinds == "TTS") return (void)aten.impl(name.c_str(), direct<T, T, S>(std::move(kernel)));
  aten.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
}

}  // namespace

void register_row_kernels(torch::Library &aten) {
  // Written by hand, or served by PyTorch's own composite kernel, which ends at those.
  static const std::unordered_set<std::string> by_hand = {"_to_copy",
                                                          "copy_",
                                                          "resize_",
                                                          "set_",
                                                          "resize_as_",
                                                          "as_strided_",
                                                          "detach_",
                                                          "equal",
                                                          "_copy_from_and_resize",
                                                          "_embedding_bag_backward"};
  auto &dispatcher = c10::Dispatcher::singleton();
  int n_rows;
  const tpu_row *rows = tpu_op_rows(&n_rows);
  std::unordered_map<std::string, std::vector<RowInfo>> by_base;
  for (int i = 0; i < n_rows; i++) {
    const std::string name = rows[i].aten, base = base_of(name);
    const size_t dot = name.find('.');
    auto op = dispatcher.findSchema({"aten::" + base, dot == std::string::npos ? "" : name.substr(dot + 1)});
    if (!op || by_hand.count(base) || op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) continue;
    RowInfo info{&rows[i], *op};
    by_base[base].push_back(info);
    if (name != "native_batch_norm") add(aten, name, functional_kernel(info), &op->schema());
  }
  for (const c10::OperatorName &op_name : dispatcher.getAllOpNames()) {
    if (op_name.name.compare(0, 6, "aten::") != 0) continue;
    std::string base = op_name.name.substr(6);
    if (by_hand.count(base)) continue;
    std::string stem =
        base.back() == '_' && base.size() > 1 && base[base.size() - 2] != '_' ? base.substr(0, base.size() - 1) : base;
    const std::vector<RowInfo> *candidates[2] = {};
    if (auto it = by_base.find(stem); it != by_base.end()) candidates[0] = &it->second;
    if (auto it = by_base.find(stem + "_functional"); it != by_base.end()) candidates[1] = &it->second;
    if (!candidates[0] && !candidates[1]) continue;
    auto op = dispatcher.findSchema(op_name);
    if (!op || op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) continue;
    const c10::FunctionSchema &schema = op->schema();
    if (std::none_of(schema.arguments().begin(), schema.arguments().end(), is_written)) continue;
    const std::string name = op_name.overload_name.empty() ? base : base + "." + op_name.overload_name;
    std::unique_ptr<Kernel> kernel;
    for (const auto *list : candidates) {
      if (!list) continue;
      for (const RowInfo &info : *list)
        if (!kernel) kernel = derived_kernel(info, schema);
    }
    if (!kernel) continue;
    if (stem.find("batch_norm_legit") != std::string::npos)
      for (size_t i = 0; i < schema.arguments().size(); i++)
        if (schema.arguments()[i].name() == "training") kernel->only_if = static_cast<int16_t>(i);
    add(aten, name, std::move(kernel));
  }
  // native_batch_norm updates its running statistics (arguments 3 and 4, if `training`) although its schema does not say so.
  if (auto it = by_base.find("_native_batch_norm_legit_functional"); it != by_base.end()) {
    auto op = dispatcher.findSchemaOrThrow("aten::native_batch_norm", "");
    if (auto kernel = derived_kernel(it->second[0], op.schema(), {3, 4})) {
      kernel->only_if = 5;
      add(aten, "native_batch_norm", std::move(kernel));
    }
  }
}

}  // namespace tpu

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&tpu::fallback>()); }

int bridge_precision_get(void) { return tpu::own_precision; }
void bridge_precision_set(int precision) { tpu::own_precision = precision; }
void bridge_fallback_set(bridge_fallback policy) { tpu::fallback_policy.store(policy); }
bridge_fallback bridge_fallback_get(void) { return tpu::fallback_policy.load(); }
void bridge_decompose_set(bridge_decompose_fn find) { tpu::decompose.store(find); }
void bridge_fallback_each(void (*see)(void *, const char *, uint64_t), void *context) {
  std::lock_guard<std::mutex> lock(tpu::fallback_lock);
  for (const auto &[name, calls] : tpu::fallback_calls()) see(context, name.c_str(), calls);
}
void bridge_kernel_each(void (*see)(void *, const char *, const char *), void *context) {
  for (const auto &[name, row] : tpu::kernel_names()) see(context, name.c_str(), row.c_str());
}
