// One boxed kernel serves every row of the op table. What it needs to know of an operator is worked out of its schema once,
// at registration; a call then reads its arguments off the stack, asks for the signature, records, and wraps the results.
// The same kernel serves in-place, out= and mutating overloads: their schema says which arguments receive the results.
#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <c10/core/DefaultDtype.h>

#include <map>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "bridge/call.h"

namespace tpu {
namespace {

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
  bool loosens = false;     // its numbers need not all be in the key
  bool counts = false;      // repeat_interleave: the result's size is the sum of the repeats
  bool contracts = false;   // may contain products whose precision can be chosen
  int16_t only_if = -1;     // results are stored only if this argument is true
  int16_t device_of = -1;   // argument that tells the device where no operand does
  std::vector<Reader> readers;
  std::vector<Result> results;
  std::vector<Return> returns;

  void operator()(const c10::OperatorHandle &op, c10::DispatchKeySet keys, Stack *stack) {
    IValue *frame = stack->data() + (stack->size() - static_cast<size_t>(n_stack));
    tpu_lane *const lane = recording_lane();
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
      const bool can_count = counts && frame[1].isNone();
      if ((!c.has_masks && !can_count) || tpu_status_code(status) != TPU_UNIMPLEMENTED) {
        if (!simple) refuse_overlaps(frame, status);
        raise(status);
      }
      tpu_status_release(status);
      if (random) random.unlock();
      can_count ? count_repeats(frame) : expand_masks(frame);
      (*this)(op, keys, stack);
      return;
    }
    if (C10_LIKELY(simple)) {
      tpu_storage *out = nullptr;
      check(tpu_record(lane, &call, signature, nullptr, &out));
      IValue result(take(out, tpu_signature_output(signature, 0)));
      torch::jit::drop(*stack, static_cast<size_t>(n_stack));
      stack->push_back(std::move(result));
      return;
    }
    record_general(lane, c, &call, signature, frame, stack, random);
  }

  // A functional call of one tensor as result whose arguments were read elsewhere.
  at::Tensor run(Call &c) const {
    tpu_lane *const lane = recording_lane();
    tpu_call call{};
    const std::unique_lock<std::mutex> random = prepare(c, nullptr, &call);
    const tpu_signature *signature;
    check(tpu_signature_get(&call, &signature));
    tpu_storage *out = nullptr;
    check(tpu_record(lane, &call, signature, nullptr, &out));
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
    if (C10_UNLIKELY(loosens)) tpu_call_loosen(call, &c.room);
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

  // The host must know how large the result is.
  static void count_repeats(IValue *frame) {
    const at::Tensor &repeats = frame[0].toTensor();
    TORCH_CHECK(repeats.ge(0).all().item<bool>(), "repeats can not be negative");
    frame[1] = repeats.sum().item<int64_t>();
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

  [[noreturn]] void refuse_dtype(const at::Tensor &out, at::ScalarType wanted) const {
    TORCH_CHECK(row->strides != TPU_STRIDES_ELEMENTWISE, "Found dtype ", out.scalar_type(), " but expected ", wanted);
    TORCH_CHECK(false, "Expected out tensor to have dtype ", c10::scalarTypeToTypeMeta(wanted), ", but got ", out.dtype(),
                " instead");
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
    if (C10_UNLIKELY(row->exact && resizes && r->dtype != dtype_of(t.scalar_type()))) refuse_dtype(t, scalar_type_of(r->dtype));
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

  void record_general(tpu_lane *lane, const Call &c, tpu_call *call, const tpu_signature *signature, IValue *frame, Stack *stack,
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
    check(tpu_record(lane, call, signature, any ? into.data() : nullptr, out.data()));
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

// Operators whose tensors PyTorch lets be 0-dim CPU tensors although no TensorIterator sees them.
bool mixes_scalars(const tpu_row *row) {
  if (row->strides == TPU_STRIDES_ELEMENTWISE || row->strides == TPU_STRIDES_ELEMENTWISE_SCALAR) return true;
  static const std::unordered_set<std::string_view> names = {"index_put",
                                                             "_index_put_impl",
                                                             "masked_fill.Tensor",
                                                             "fill.Tensor",
                                                             "_foreach_add.Tensor",
                                                             "_foreach_mul.Tensor",
                                                             "_foreach_div.Tensor",
                                                             "index_fill.int_Tensor",
                                                             "copy",
                                                             "_unsafe_index_put",
                                                             "_fused_adagrad.tensor_lr",
                                                             "_fused_adam.tensor_lr",
                                                             "_fused_adamw.tensor_lr",
                                                             "_fused_sgd.tensor_lr"};
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
  k->loosens = tpu_row_loosens(info.row);
  k->counts = name == "repeat_interleave.Tensor";
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

std::map<std::string, std::string> &kernel_names() {
  static auto *names = new std::map<std::string, std::string>();
  return *names;
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
    const std::vector<RowInfo> *candidates[3] = {};
    if (auto it = by_base.find(stem); it != by_base.end()) candidates[0] = &it->second;
    if (auto it = by_base.find(stem + "_functional"); it != by_base.end()) candidates[1] = &it->second;
    // The functional form of conj_physical.out is a composite of _conj_physical.
    if (auto it = by_base.find("_" + stem); it != by_base.end()) candidates[2] = &it->second;
    if (!candidates[0] && !candidates[1] && !candidates[2]) continue;
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

int bridge_precision_get(void) { return tpu::own_precision; }
void bridge_precision_set(int precision) { tpu::own_precision = precision; }
void bridge_kernel_each(void (*see)(void *, const char *, const char *), void *context) {
  for (const auto &[name, row] : tpu::kernel_names()) see(context, name.c_str(), row.c_str());
}
