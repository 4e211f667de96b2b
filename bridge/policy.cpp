// What holds for operators wholesale: those without a kernel, those of nested tensors, and all of them under mixed precision.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_cudnn_rnn.h>
#include <ATen/ops/_nested_from_padded_native.h>
#include <ATen/ops/_nested_tensor_from_mask_native.h>
#include <ATen/ops/_nested_view_from_buffer_native.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>

#include <atomic>
#include <map>
#include <mutex>
#include <unordered_set>

#include "bridge/call.h"

namespace tpu {
namespace {

// --- operators without a kernel

std::atomic<bridge_fallback> fallback_policy{BRIDGE_FALLBACK_WARN};
std::atomic<bridge_decompose_fn> decompose{nullptr};
std::mutex fallback_lock;
std::map<std::string, uint64_t> &fallback_calls() {
  static auto *calls = new std::map<std::string, uint64_t>();
  return *calls;
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
  for (const at::Tensor &out : outs) {
    at::assert_no_internal_overlap(out);
    for (const IValue &v : inner)
      if (v.isTensor() && v.toTensor().defined()) at::assert_no_partial_overlap(out, v.toTensor());
  }
  const Stack inputs = inner;
  functional.redispatchBoxed(keys, &inner);
  for (size_t k = 0; k < outs.size(); k++) {
    const at::Tensor result = inner[k].toTensor();
    TORCH_CHECK(c10::canCast(result.scalar_type(), outs[k].scalar_type()), "result type ", result.scalar_type(),
                " can't be cast to the desired output type ", outs[k].scalar_type());
    if (outs[k].sizes() != result.sizes())
      for (const IValue &v : inputs)
        if (v.isTensor() && v.toTensor().defined()) at::assert_no_overlap(outs[k], v.toTensor());
    at::native::resize_output(outs[k], result.sizes());
    copy_tensor(outs[k], result, false);
  }
  torch::jit::drop(*stack, args.size());
  for (at::Tensor &out : outs) stack->emplace_back(std::move(out));
}

// Counts a call of an operator that runs on the CPU and says so once, or refuses it: what TORCH_TPU_CPU_FALLBACK asks for.
void fallback_announce(const std::string &name) {
  const bridge_fallback policy = fallback_policy.load();
  TORCH_CHECK_NOT_IMPLEMENTED(policy != BRIDGE_FALLBACK_ERROR, "The operator '", name, "' is not implemented for the ",
                              c10::DeviceTypeName(kDevice, true),
                              " device, and TORCH_TPU_CPU_FALLBACK=error forbids running it on the CPU.");
  bool first;
  {
    std::lock_guard<std::mutex> lock(fallback_lock);
    first = fallback_calls()[name]++ == 0;
  }
  if (first && policy == BRIDGE_FALLBACK_WARN)
    TORCH_WARN("The operator '", name, "' is not implemented for the ", c10::DeviceTypeName(kDevice, true),
               " device and runs on the CPU, which is slow. TORCH_TPU_CPU_FALLBACK=error turns this warning into an error, "
               "TORCH_TPU_CPU_FALLBACK=silent hides it.");
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
  fallback_announce(name);
  replace_generator(stack, op.schema().arguments().size());
  at::native::cpu_fallback(op, stack);
}

// --- nested tensors of the strided layout. Most of PyTorch's kernels for them are compositions over the buffer, whatever the
// device in their names; those that read its memory run on the CPU.

bool reads_memory(const std::string &name) {
  static constexpr const char *names[] = {
      "sum", "all", "_nested_sum_backward", "native_layer_norm", "native_layer_norm_backward", "_transform_bias_rescale_qkv"};
  return std::any_of(std::begin(names), std::end(names), [&](const char *n) { return name == std::string("aten::") + n; });
}

void nested(const c10::OperatorHandle &op, c10::DispatchKeySet, Stack *stack) {
  const std::string name = c10::toString(op.operator_name());
  TORCH_CHECK_NOT_IMPLEMENTED(op.hasKernelForDispatchKey(c10::DispatchKey::NestedTensorCPU), "The operator '", name,
                              "' is not implemented for nested tensors of the strided layout. Use layout=torch.jagged.");
  if (reads_memory(op.operator_name().name)) {
    fallback_announce(name);
    at::native::cpu_fallback(op, stack, false, c10::DispatchKey::NestedTensorCPU);
  } else {
    op.callBoxedForDispatchKey(c10::DispatchKey::NestedTensorCPU, *stack);
  }
}

// --- recurrent layers. PyTorch's composite kernels record each step's operations, a program that grows with the steps. Where it
// would be long, a layer is one operator, which is a loop in the program; PyTorch's formula for cuDNN's connects it to autograd.

constexpr int64_t kManySteps = 16;

// rnn_tanh.input(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)
struct RecurrentArgs {
  const IValue *at;
  at::Tensor input = at[0].toTensor();
  std::vector<at::Tensor> hx = at[1].isTensor() ? std::vector<at::Tensor>{at[1].toTensor()} : at[1].toTensorVector();
  std::vector<at::Tensor> params = at[2].toTensorVector();
  int64_t each = at[3].toBool() ? 4 : 2, layers = at[4].toInt(), directions = at[7].toBool() ? 2 : 1;
  bool batch_first = at[8].toBool();

  // cuDNN's forms have no second gradient and no forward mode, so what may need them can ask for the composite kernel as on CUDA:
  // torch.backends.cudnn.flags(enabled=False).
  bool can_loop() const {
    const auto ours = [](const at::Tensor &t) { return is_ours(t.unsafeGetTensorImpl()) && !t._fw_grad(0).defined(); };
    return at::globalContext().userEnabledCuDNN() && input.dim() == 3 && input.size(batch_first ? 1 : 0) >= kManySteps &&
           input.numel() > 0 && at::isFloatingType(input.scalar_type()) && ours(input) &&
           static_cast<int64_t>(params.size()) == layers * directions * each && std::all_of(hx.begin(), hx.end(), ours) &&
           std::all_of(params.begin(), params.end(), ours) && hx[0].dim() == 3 && hx[0].size(0) == layers * directions &&
           hx.back().sizes() == hx[0].sizes();
  }

  void lower_precision() {
    if (!at::autocast::is_autocast_enabled(kDevice)) return;
    std::vector<at::Tensor *> all = {&input};
    for (std::vector<at::Tensor> *list : {&hx, &params})
      for (at::Tensor &t : *list) all.push_back(&t);
    for (at::Tensor *t : all) *t = at::autocast::cached_cast(at::autocast::get_autocast_dtype(kDevice), *t, kDevice);
  }
};

int64_t recurrent_mode(const std::string &name) {
  return name == "aten::lstm" ? 2 : name == "aten::gru" ? 3 : name == "aten::rnn_tanh" ? 1 : 0;
}

void recurrent(const c10::OperatorHandle &op, c10::DispatchKeySet, Stack *stack) {
  RecurrentArgs a{stack->data() + (stack->size() - op.schema().arguments().size())};
  if (!a.can_loop()) return op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  a.lower_precision();
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastPrivateUse1);
  at::Tensor x = a.batch_first ? a.input.transpose(0, 1) : a.input;
  const auto per_layer = static_cast<size_t>(a.directions * a.each);
  const double dropout = a.at[5].toDouble();
  const bool train = a.at[6].toBool();
  std::vector<at::Tensor> last[2];
  for (int64_t i = 0; i < a.layers; i++) {
    const auto state = [&](size_t k) { return a.hx[k].narrow(0, i * a.directions, a.directions); };
    const std::optional<at::Tensor> cx = a.hx.size() > 1 ? std::optional<at::Tensor>(state(1)) : std::nullopt;
    auto [y, hy, cy, reserve, buffer] = at::_cudnn_rnn(
        x, at::TensorList(a.params).slice(static_cast<size_t>(i) * per_layer, per_layer), a.each, {}, state(0), cx,
        recurrent_mode(op.operator_name().name), a.hx[0].size(2), 0, 1, false, 0.0, train, a.directions == 2, {}, {});
    x = dropout > 0 && train && i + 1 < a.layers ? at::dropout(y, dropout, true) : y;
    last[0].push_back(hy);
    last[1].push_back(cy);
  }
  torch::jit::drop(*stack, op.schema().arguments().size());
  stack->emplace_back(a.batch_first ? x.transpose(0, 1) : x);
  for (size_t k = 0; k + 1 < op.schema().returns().size(); k++)
    stack->emplace_back(a.layers == 1 ? last[k][0] : at::cat(last[k]));
}

}  // namespace
}  // namespace tpu

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&tpu::fallback>()); }

TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&tpu::nested>()); }

// By name too: a composite kernel would come before the one for all operators.
TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
  auto &dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName &name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    auto op = dispatcher.findSchema(name);
    if (op && op->hasKernelForDispatchKey(c10::DispatchKey::NestedTensorCPU))
      m.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&tpu::nested>());
  }
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_nested_from_padded", TORCH_FN(at::native::nested_from_padded_generic));
  m.impl("_nested_tensor_from_mask", TORCH_FN(at::native::NestedTensor_nested_tensor_from_mask));
  m.impl("_nested_view_from_buffer", TORCH_FN(at::native::_nested_view_from_buffer));
}

#define RECURRENT(m)                                                                       \
  for (const char *name : {"lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input"}) \
  m.impl(name, torch::CppFunction::makeFromBoxedFunction<&tpu::recurrent>())
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { RECURRENT(m); }
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { RECURRENT(m); }

void bridge_fallback_set(bridge_fallback policy) { tpu::fallback_policy.store(policy); }
bridge_fallback bridge_fallback_get(void) { return tpu::fallback_policy.load(); }
void bridge_decompose_set(bridge_decompose_fn find) { tpu::decompose.store(find); }
void bridge_fallback_each(void (*see)(void *, const char *, uint64_t), void *context) {
  std::lock_guard<std::mutex> lock(tpu::fallback_lock);
  for (const auto &[name, calls] : tpu::fallback_calls()) see(context, name.c_str(), calls);
}

// --- autocast: PyTorch's own policies and op lists, for this device. The default dtype is set with the lane.

using at::IntArrayRef;
using at::Scalar;
using at::ScalarType;
using at::Tensor;

namespace {
Tensor no_binary_cross_entropy(const Tensor &, const Tensor &, const std::optional<Tensor> &, int64_t) {
  TORCH_CHECK(false,
              "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
              "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
              "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
              "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
              "safe to autocast.");
}
}  // namespace

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
  AT_FORALL_LOWER_PRECISION_FP(LOWER)
#define FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_FP32(FP32)
#define FP32_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
  AT_FORALL_FP32_SET_OPT_DTYPE(FP32_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
#define PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_PROMOTE(PROMOTE)
  m.impl(TORCH_SELECTIVE_NAME("aten::binary_cross_entropy"), TORCH_FN(no_binary_cross_entropy));
}
