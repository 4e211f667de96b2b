// What PyTorch asks of a device: hooks, guard and events, generators, allocators; and the lanes of threads.
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/SequenceNumber.h>
#include <ATen/Utils.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/AutogradState.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceCapability.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/profiler/stubs/base.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "bridge/bridge.h"

// From ATen/autocast_mode.h, which costs more to compile than the rest of this file.
namespace at::autocast {
TORCH_API bool is_autocast_enabled(at::DeviceType device_type);
TORCH_API void set_autocast_dtype(at::DeviceType device_type, at::ScalarType dtype);
}  // namespace at::autocast

// From torch/csrc/Generator.h, which includes Python.h.
typedef struct _object PyObject;
TORCH_API PyObject *THPGenerator_Wrap(const at::Generator &generator);

namespace tpu {

// --- failures

void raise(tpu_status status) {
  const tpu_code code = tpu_status_code(status);
  std::string message = tpu_status_message(status);
  const c10::SourceLocation where{"", tpu_status_file(status), static_cast<uint32_t>(tpu_status_line(status))};
  tpu_status_release(status);
  switch (code) {
    case TPU_OUT_OF_RANGE: throw c10::IndexError(where, std::move(message));
    case TPU_TYPE_ERROR: throw c10::TypeError(where, std::move(message));
    case TPU_VALUE_ERROR: throw c10::ValueError(where, std::move(message));
    case TPU_UNIMPLEMENTED: throw c10::NotImplementedError(where, std::move(message));
    case TPU_RESOURCE_EXHAUSTED: throw c10::OutOfMemoryError(where, std::move(message));
    default: throw c10::Error(where, std::move(message));
  }
}

void unsupported_dtype(c10::ScalarType type) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "A ", c10::DeviceTypeName(kDevice, true), " device has no dtype ", type);
  std::abort();
}

void foreign_storage() {
  TORCH_CHECK(false, "This tensor claims to be on a ", c10::DeviceTypeName(kDevice, true),
              " device, but its storage was not allocated there");
  std::abort();
}

namespace {
struct DtypeTable {
  uint8_t of[256];
  DtypeTable() {
    for (int i = 0; i < 256; i++) of[i] = static_cast<uint8_t>(tpu_dtype_from_torch(i));
  }
};
const DtypeTable dtype_table;
}  // namespace
const uint8_t *const dtype_of_scalar_type = dtype_table.of;

// --- lanes

namespace {

constexpr std::string_view kLaneName = "TPU_LANE";
const c10::DebugInfoKind kLaneKind(&kLaneName);

struct LaneInfo final : c10::DebugInfoBase {
  tpu_lane *const lane = tpu_lane_create();
  LaneInfo() {
    if (!lane) throw std::bad_alloc();
  }
  ~LaneInfo() override { tpu_lane_release(lane); }
};

// A lane made on first use. It is put where PyTorch's thread-local state carries it to the threads that run this thread's
// backward passes; under somebody else's entry it would break the order in which entries are taken off, so then it is not.
C10_NOINLINE tpu_lane *own_lane() {
  thread_local std::shared_ptr<LaneInfo> own;
  if (!own) {
    own = std::make_shared<LaneInfo>();
    // Backward passes only record, so they do not deserve a thread of their own, and two changes of thread.
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    // PyTorch's per-thread default is float16.
    if (!at::autocast::is_autocast_enabled(kDevice)) at::autocast::set_autocast_dtype(kDevice, at::kBFloat16);
  }
  if (!c10::ThreadLocalDebugInfo::current()) c10::ThreadLocalDebugInfo::_push(kLaneKind, own);
  return own->lane;
}

}  // namespace

tpu_lane *lane() {
  auto *info = c10::ThreadLocalDebugInfo::get(kLaneKind);
  return C10_LIKELY(info != nullptr) ? static_cast<LaneInfo *>(info)->lane : own_lane();
}

tpu_lane *recording_lane() {
  thread_local uint64_t known_nodes = 0;
  tpu_lane *l = lane();
  bool is_innermost;
  uint64_t source = bridge_source_here(&is_innermost);
  // What the engine itself calls was caused by the line that made the node.
  if (!is_innermost)
    if (const auto node = torch::autograd::get_current_node())
      if (const uint64_t cause = tpu_lane_node_find(l, node->sequence_nr())) source = cause;
  // A node that was made since the last call is this call's.
  const uint64_t nodes = at::sequence_number::peek();
  if (nodes != known_nodes) {
    known_nodes = nodes;
    if (nodes) tpu_lane_node_note(l, nodes - 1, source);
  }
  tpu_lane_source_set(l, source);
  return l;
}

// --- devices

namespace {

thread_local int current = 0;

void require_device(int index) {
  const int count = tpu_device_count();
  TORCH_CHECK(index >= 0 && index < count, "invalid device ordinal: ", c10::DeviceTypeName(kDevice, true), ":", index,
              " does not exist; there ", count == 1 ? "is " : "are ", count, count == 1 ? " device" : " devices");
}

void set_current(int index) {
  if (index == current) return;
  require_device(index);
  current = index;
}

}  // namespace

int current_device() { return current; }

int device_index(std::optional<c10::Device> device) {
  if (!device || !device->has_index()) return current;
  TORCH_CHECK(device->type() == kDevice, "expected a ", c10::DeviceTypeName(kDevice, true), " device, got ", *device);
  if (device->index() != 0) require_device(device->index());
  return device->index();
}

// --- memory

void release_storage(void *storage) { tpu_storage_release(static_cast<tpu_storage *>(storage)); }

namespace {

struct DeviceMemory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t n) override {
    tpu_storage *s;
    check(tpu_storage_create(current, static_cast<int64_t>(n), &s));
    return {reinterpret_cast<void *>(tpu_storage_address(s)), s, &release_storage,
            c10::Device(kDevice, static_cast<c10::DeviceIndex>(current))};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void *, const void *, size_t) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "Device memory has no addresses to copy between");
  }
  bool initialized() override { return tpu_is_initialized(); }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr &, c10::Stream) override {}

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    tpu_memory_info info = get(device);
    c10::CachingDeviceAllocator::DeviceStats s;
    constexpr auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    std::lock_guard<std::mutex> lock(lock_);
    const Since &since = since_[device];
    for (auto *bytes : {&s.allocated_bytes, &s.reserved_bytes, &s.active_bytes, &s.requested_bytes}) {
      (*bytes)[all].current = info.allocated;
      (*bytes)[all].peak = info.peak;
    }
    for (auto *count : {&s.allocation, &s.segment, &s.active}) {
      (*count)[all].current = info.allocations - info.frees;
      (*count)[all].allocated = info.allocations - since.allocations;
      (*count)[all].freed = info.frees - since.frees;
    }
    s.num_device_alloc = info.allocations - since.allocations;
    s.num_device_free = info.frees - since.frees;
    return s;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    tpu_memory_info info = get(device);
    std::lock_guard<std::mutex> lock(lock_);
    since_[device] = {info.allocations, info.frees};
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    require_device(device);
    tpu_memory_reset_peak(device);
  }
  // Bytes free and in all. Where the plugin does not tell, the host's memory bounds both.
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    tpu_memory_info info = get(device);
    if (info.limit < 0) info.limit = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    return {static_cast<size_t>(std::max<int64_t>(info.limit - info.allocated, 0)), static_cast<size_t>(info.limit)};
  }

 private:
  struct Since {
    int64_t allocations = 0, frees = 0;
  };
  static tpu_memory_info get(c10::DeviceIndex device) {
    require_device(device);
    check(tpu_initialize());
    tpu_memory_info info;
    tpu_memory_info_get(device, &info);
    return info;
  }
  std::mutex lock_;
  std::map<int, Since> since_;
};

DeviceMemory &device_memory() {
  static auto *a = new DeviceMemory();
  return *a;
}

// Host memory that the runtime can take and fill without a copy: 64-byte aligned.
struct PinnedMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    if (n == 0) return {nullptr, c10::Device(c10::kCPU)};
    const size_t size = (n + 63) / 64 * 64;
    void *p = std::aligned_alloc(64, size);
    if (!p) throw std::bad_alloc();
    std::lock_guard<std::mutex> lock(lock_);
    ranges_[reinterpret_cast<uintptr_t>(p)] = size;
    return {p, p, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void *to, const void *from, size_t n) const override { default_copy_data(to, from, n); }
  bool owns(const void *p) {
    const auto at = reinterpret_cast<uintptr_t>(p);
    std::lock_guard<std::mutex> lock(lock_);
    auto it = ranges_.upper_bound(at);
    return it != ranges_.begin() && at < std::prev(it)->first + std::prev(it)->second;
  }

 private:
  static void release(void *p);
  std::mutex lock_;
  std::map<uintptr_t, size_t> ranges_;
};

PinnedMemory &pinned_memory() {
  static auto *a = new PinnedMemory();
  return *a;
}

void PinnedMemory::release(void *p) {
  PinnedMemory &self = pinned_memory();
  {
    std::lock_guard<std::mutex> lock(self.lock_);
    self.ranges_.erase(reinterpret_cast<uintptr_t>(p));
  }
  std::free(p);
}

}  // namespace

c10::Allocator *allocator() {
  static c10::Allocator *const a = &device_memory();
  return a;
}

// --- random numbers

GeneratorImpl::GeneratorImpl(int device)
    : c10::GeneratorImpl(c10::Device(kDevice, static_cast<c10::DeviceIndex>(device)),
                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      state{c10::default_rng_seed_val, 0} {}
void GeneratorImpl::set_current_seed(uint64_t seed) { state = {seed, 0}; }
void GeneratorImpl::set_offset(uint64_t offset) { state.offset = offset; }
uint64_t GeneratorImpl::get_offset() const { return state.offset; }
uint64_t GeneratorImpl::current_seed() const { return state.seed; }
uint64_t GeneratorImpl::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return state.seed;
}
void GeneratorImpl::set_state(const c10::TensorImpl &from) {
  at::detail::check_rng_state(from);
  TORCH_CHECK(from.numel() == 16, "RNG state is wrong size: expected 16 bytes, got ", from.numel());
  uint64_t words[2];
  std::memcpy(words, from.data(), sizeof words);
  state = {words[0], words[1]};
}
c10::intrusive_ptr<c10::TensorImpl> GeneratorImpl::get_state() const {
  at::Tensor t = at::detail::empty_cpu({16}, at::kByte, std::nullopt, std::nullopt, std::nullopt, std::nullopt);
  const uint64_t words[2] = {state.seed, state.offset};
  std::memcpy(t.mutable_data_ptr(), words, sizeof words);
  return t.getIntrusivePtr();
}
GeneratorImpl *GeneratorImpl::clone_impl() const {
  auto *copy = new GeneratorImpl(device_.index());
  copy->state = state;
  return copy;
}

at::Generator new_generator(int device) { return at::make_generator<GeneratorImpl>(device); }

const at::Generator &default_generator(int device) {
  static auto *all = [] {
    auto *list = new std::vector<at::Generator>();
    for (int i = 0; i < std::max(tpu_device_count(), 1); i++) {
      list->push_back(new_generator(i));
      list->back().seed();
    }
    return list;
  }();
  if (device < 0) device = current;
  if (static_cast<size_t>(device) >= all->size()) require_device(device);
  return all->at(static_cast<size_t>(device));
}

// --- guard and events

namespace {

struct Event {
  bool timed;
  int device;
  std::chrono::steady_clock::time_point at;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Stream stream(c10::Device d) {
    return c10::Stream(c10::Stream::DEFAULT,
                       c10::Device(kDevice, static_cast<c10::DeviceIndex>(d.has_index() ? d.index() : current)));
  }
  c10::DeviceType type() const override { return kDevice; }
  c10::Device exchangeDevice(c10::Device d) const override {
    c10::Device before = getDevice();
    setDevice(d);
    return before;
  }
  c10::Device getDevice() const override { return c10::Device(kDevice, static_cast<c10::DeviceIndex>(current)); }
  void setDevice(c10::Device d) const override {
    if (d.has_index()) set_current(d.index());
  }
  void uncheckedSetDevice(c10::Device d) const noexcept override {
    if (d.has_index()) current = d.index();
  }
  // There is one stream per device; work is ordered by data, not by streams.
  c10::Stream getStream(c10::Device d) const override { return stream(d); }
  c10::Stream getDefaultStream(c10::Device d) const override { return stream(d); }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override { return stream(d); }
  c10::Stream getNewStream(c10::Device d, int) const override { return stream(d); }
  c10::Stream exchangeStream(c10::Stream s) const override { return stream(s.device()); }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(tpu_device_count()); }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability c;
    c.capability_data.capability_bits = 0;
#define SET(_, name)                                    \
  c.capability_data.supported_scalar_types.has_##name = \
      dtype_of_scalar_type[static_cast<uint8_t>(c10::ScalarType::name)] != TPU_DTYPE_NONE;
    AT_FORALL_SCALAR_TYPES_WITH_COMPLEX_AND_QINTS(SET)
#undef SET
    return c;
  }
  bool queryStream(const c10::Stream &s) const override { return query(s.device_index()); }
  void synchronizeStream(const c10::Stream &s) const override { check(bridge_synchronize(s.device_index())); }
  void synchronizeDevice(const c10::DeviceIndex d) const override { check(bridge_synchronize(d < 0 ? current : d)); }
  void recordDataPtrOnStream(const c10::DataPtr &, const c10::Stream &) const override {}

  void destroyEvent(void *event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event *>(event); }
  // Launches what is pending. With timing it also waits, since a plugin says when work ended, not when it began.
  void record(void **event, const c10::Stream &s, const c10::DeviceIndex, const c10::EventFlag flag) const override {
    const int device = s.device_index();
    const bool timed = flag == c10::EventFlag::BACKEND_DEFAULT;
    check(timed ? bridge_synchronize(device) : tpu_cut(lane(), device));
    if (!*event) *event = new Event();
    *static_cast<Event *>(*event) = {timed, device, std::chrono::steady_clock::now()};
  }
  void block(void *, const c10::Stream &) const override {}
  bool queryEvent(void *event) const override {
    auto *e = static_cast<Event *>(event);
    return !e || e->timed || query(e->device);
  }
  void synchronizeEvent(void *event) const override {
    auto *e = static_cast<Event *>(event);
    if (e && !e->timed) check(bridge_synchronize(e->device));
  }
  double elapsedTime(void *first, void *second, const c10::DeviceIndex) const override {
    auto *a = static_cast<Event *>(first), *b = static_cast<Event *>(second);
    TORCH_CHECK(a && b, "Both events must be recorded before calculating elapsed time.");
    TORCH_CHECK(a->timed && b->timed, "Both events must be created with argument 'enable_timing=True'.");
    return std::chrono::duration<double, std::milli>(b->at - a->at).count();
  }

 private:
  static bool query(int device) {
    bool done = true;
    check(tpu_query(lane(), device, &done));
    return done;
  }
};

// For torch.autograd.profiler: when a device had done what was launched before a point of the program.
struct Profiler final : torch::profiler::impl::ProfilerStubs {
  struct Point {
    int device;
    std::chrono::steady_clock::time_point at;
  };
  void record(c10::DeviceIndex *device, torch::profiler::impl::ProfilerVoidEventStub *event, int64_t *cpu_ns) const override {
    check(bridge_synchronize(current));
    const auto now = std::chrono::steady_clock::now();
    if (device) *device = static_cast<c10::DeviceIndex>(current);
    if (cpu_ns) *cpu_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now.time_since_epoch()).count();
    *event = std::make_shared<Point>(Point{current, now});
  }
  float elapsed(const torch::profiler::impl::ProfilerVoidEventStub *first,
                const torch::profiler::impl::ProfilerVoidEventStub *second) const override {
    const auto at = [](const auto *event) { return std::static_pointer_cast<const Point>(*event)->at; };
    return std::chrono::duration<float, std::micro>(at(second) - at(first)).count();
  }
  void mark(const char *) const override {}
  void rangePush(const char *) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> visit) const override {
    for (int d = 0; d < tpu_device_count(); d++) visit(d);
  }
  void synchronize() const override {
    for (int d = 0; d < tpu_device_count(); d++) check(bridge_synchronize(d));
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return tpu_device_count() > 0; }
  const at::Generator &getDefaultGenerator(c10::DeviceIndex d) const override { return default_generator(d); }
  at::Generator getNewGenerator(c10::DeviceIndex d) const override {
    if (d > 0) require_device(d);
    return new_generator(d < 0 ? current : d);
  }
  at::Device getDeviceFromPtr(void *) const override { TORCH_CHECK_NOT_IMPLEMENTED(false, "Device memory has no addresses"); }
  bool isPinnedPtr(const void *p) const override { return pinned_memory().owns(p); }
  at::Allocator *getPinnedMemoryAllocator() const override { return &pinned_memory(); }
  bool hasPrimaryContext(c10::DeviceIndex d) const override { return d >= 0 && d < tpu_device_count(); }
  void init() const override { check(bridge_initialize()); }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(tpu_device_count()); }
  void setCurrentDevice(c10::DeviceIndex d) const override { set_current(d); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(current); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex d) const override {
    const int before = current;
    set_current(d);
    return static_cast<c10::DeviceIndex>(before);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex d) const override {
    return d < 0 ? static_cast<c10::DeviceIndex>(current) : exchangeDevice(d);
  }
  void resizePrivateUse1Bytes(const c10::Storage &storage, size_t size) const override {
    resize_storage(storage.unsafeGetStorageImpl(), static_cast<int64_t>(size));
  }
};

// If a backward pass ran before this backend was loaded, the engine has no queue for our devices; it reads the number of
// devices once.
struct Engine : torch::autograd::Engine {
  static void adopt(torch::autograd::Engine &engine, size_t devices) {
    auto &queues = engine.*(&Engine::device_ready_queues_);
    if (!(engine.*(&Engine::thread_pool_shared_)) || queues.size() >= devices) return;
    const size_t first = queues.size();
    while (queues.size() < devices) queues.push_back(std::make_shared<torch::autograd::ReadyQueue>());
    for (size_t i = first; i < devices; i++)
      std::thread(&torch::autograd::Engine::thread_init, &engine, static_cast<int>(i), queues[i], true).detach();
  }
};

}  // namespace

void register_device() {
  c10::SetAllocator(kDevice, &device_memory());
  static c10::impl::DeviceGuardImplRegistrar guard(kDevice, new Guard());
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  torch::profiler::impl::registerPrivateUse1Methods(new Profiler());
  Engine::adopt(torch::autograd::Engine::get_default_engine(), static_cast<size_t>(tpu_device_count()));
  lane();
}

}  // namespace tpu

tpu_status bridge_register(void) {
  try {
    static auto *aten = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
    tpu::register_device();
    tpu::register_tensor_kernels(*aten);
    tpu::register_row_kernels(*aten);
    tpu::register_sparse_kernels(*aten);
  } catch (const std::exception &e) {
    return tpu_error(TPU_INTERNAL, "%s", e.what());
  }
  return nullptr;
}

tpu_status bridge_initialize(void) { return tpu_initialize(); }
tpu_lane *bridge_lane(void) { return tpu::lane(); }
int bridge_current_device(void) { return tpu::current; }
tpu_status bridge_set_device(int device) {
  const int count = tpu_device_count();
  if (device < 0 || device >= count)
    return tpu_error(TPU_INVALID_ARGUMENT, "invalid device ordinal %d; there are %d devices", device, count);
  tpu::current = device;
  return nullptr;
}

void *bridge_generator_object(int device) { return THPGenerator_Wrap(tpu::default_generator(device)); }
static tpu::GeneratorImpl *generator_of(int device) {
  return static_cast<tpu::GeneratorImpl *>(tpu::default_generator(device).unsafeGetGeneratorImpl());
}
void bridge_generator_seed(int device, uint64_t seed) {
  auto *g = generator_of(device);
  std::lock_guard<std::mutex> lock(g->mutex_);
  g->set_current_seed(seed);
}
void bridge_generator_get(int device, uint64_t out[2]) {
  auto *g = generator_of(device);
  std::lock_guard<std::mutex> lock(g->mutex_);
  out[0] = g->state.seed;
  out[1] = g->state.offset;
}
void bridge_generator_set(int device, const uint64_t in[2]) {
  auto *g = generator_of(device);
  std::lock_guard<std::mutex> lock(g->mutex_);
  g->state = {in[0], in[1]};
}
