// What holds for operators wholesale: those without a kernel, those of nested tensors, and all of them under mixed precision.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_nested_from_padded_native.h>
#include <ATen/ops/_nested_tensor_from_mask_native.h>
#include <ATen/ops/_nested_view_from_buffer_native.h>

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

const std::unordered_set<std::string> &kernels_over_memory() {
  static const std::unordered_set<std::string> names = {"aten::sum",
                                                        "aten::all",
                                                        "aten::_nested_sum_backward",
                                                        "aten::native_layer_norm",
                                                        "aten::native_layer_norm_backward",
                                                        "aten::_transform_bias_rescale_qkv"};
  return names;
}

void nested(const c10::OperatorHandle &op, c10::DispatchKeySet, Stack *stack) {
  const std::string name = c10::toString(op.operator_name());
  TORCH_CHECK_NOT_IMPLEMENTED(op.hasKernelForDispatchKey(c10::DispatchKey::NestedTensorCPU), "The operator '", name,
                              "' is not implemented for nested tensors of the strided layout. Use layout=torch.jagged.");
  if (kernels_over_memory().count(op.operator_name().name)) {
    fallback_announce(name);
    at::native::cpu_fallback(op, stack, false, c10::DispatchKey::NestedTensorCPU);
  } else {
    op.callBoxedForDispatchKey(c10::DispatchKey::NestedTensorCPU, *stack);
  }
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
