// How one call's arguments are read: off the boxed stack or straight from a C++ caller, into what core/rt takes. What there
// is to know of an argument is worked out of its schema once, as a Reader.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/function_schema.h>

#include <algorithm>

#include "bridge/bridge.h"

namespace tpu {

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

[[noreturn]] inline void fail_devices(c10::Device first, c10::Device second) {
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
  tpu_call_room room;
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

// --- schemas

inline Read read_of(c10::TypePtr type, bool *out_optional_elements) {
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

inline bool is_tensor_list(const c10::TypePtr &type) {
  bool ignored = false;
  return read_of(type, &ignored) == Read::Tensors;
}

// Tensor and Tensor? correspond.
inline bool same_type(const c10::TypePtr &a, const c10::TypePtr &b) {
  bool ignored = false;
  return *a == *b || (read_of(a, &ignored) == Read::Tensor && read_of(b, &ignored) == Read::Tensor);
}

inline bool is_written(const c10::Argument &a) { return a.alias_info() && a.alias_info()->isWrite(); }

}  // namespace tpu
