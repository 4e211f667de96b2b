/* The part of the PJRT C API's binary interface that is used here: API 0.81 to 0.117.
 *
 * Every args struct begins with its own size and a chain of extensions. A caller may pass a struct larger than
 * the plugin knows, so these have the fields of API 0.114, and an older plugin leaves the later ones alone.
 * Fields after a line "out" are written by the plugin. Only calls.h and its users, and the fake plugin, include this.
 * Source: pjrt_c_api.h of OpenXLA (Apache-2.0). Checked against it by abi_test.c.
 */
#ifndef TPU_PJRT_PJRT_ABI_H
#define TPU_PJRT_PJRT_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct PJRT_Error PJRT_Error;
typedef struct PJRT_Event PJRT_Event;
typedef struct PJRT_Client PJRT_Client;
typedef struct PJRT_Device PJRT_Device;
typedef struct PJRT_Memory PJRT_Memory;
typedef struct PJRT_DeviceDescription PJRT_DeviceDescription;
typedef struct PJRT_TopologyDescription PJRT_TopologyDescription;
typedef struct PJRT_Executable PJRT_Executable;
typedef struct PJRT_LoadedExecutable PJRT_LoadedExecutable;
typedef struct PJRT_Buffer PJRT_Buffer;

typedef enum tpu_slot {
#define SLOT(name) TPU_SLOT_##name,
#include "pjrt/pjrt_slots.inc"
  TPU_SLOT_COUNT
} tpu_slot;

typedef struct tpu_abi_extension {
  size_t struct_size;
  int type;
  struct tpu_abi_extension *next;
} tpu_abi_extension;
enum { TPU_EXTENSION_TPU_TOPOLOGY = 16 };

#define TPU_ABI_HEAD  \
  size_t struct_size; \
  tpu_abi_extension *extension_start

typedef struct tpu_abi_version {
  TPU_ABI_HEAD;
  int major, minor;
} tpu_abi_version;

typedef void (*tpu_abi_function)(void); /* cast to tpu_abi_call, or to a type of its own, to be called */
typedef PJRT_Error *(*tpu_abi_call)(void *args);

typedef struct tpu_abi {
  TPU_ABI_HEAD;
  tpu_abi_version version;
  tpu_abi_function slots[TPU_SLOT_COUNT]; /* present where struct_size reaches; may be NULL */
} tpu_abi;

enum { /* tpu_abi_named_value.type */
       TPU_VALUE_STRING = 0,
       TPU_VALUE_INT64 = 1,
       TPU_VALUE_INT64_LIST = 2,
       TPU_VALUE_FLOAT = 3,
       TPU_VALUE_BOOL = 4,
};

typedef struct tpu_abi_named_value {
  TPU_ABI_HEAD;
  const char *name;
  size_t name_size;
  int type;
  union {
    const char *string_value;
    int64_t int64_value;
    const int64_t *int64_array_value;
    float float_value;
    bool bool_value;
  } value;
  size_t value_size;
} tpu_abi_named_value;

enum { /* host_buffer_semantics */
       TPU_HOST_IMMUTABLE_ONLY_DURING_CALL = 0,
       TPU_HOST_IMMUTABLE_UNTIL_TRANSFER_COMPLETES = 1,
       TPU_HOST_IMMUTABLE_ZERO_COPY = 2,
};

enum { TPU_LAYOUT_TILED = 0 };
typedef struct tpu_abi_layout {
  TPU_ABI_HEAD;
  struct {
    TPU_ABI_HEAD;
    const int64_t *minor_to_major;
    size_t minor_to_major_size;
    const int64_t *tile_dims;
    const size_t *tile_dim_sizes;
    size_t num_tiles;
  } tiled; /* a union with a smaller struct of strides */
  int type;
} tpu_abi_layout;

typedef struct tpu_abi_program {
  TPU_ABI_HEAD;
  char *code;
  size_t code_size;
  const char *format;
  size_t format_size;
} tpu_abi_program;

/* --- errors: these three are not asked through the call door */
typedef struct tpu_abi_Error_Destroy {
  TPU_ABI_HEAD;
  PJRT_Error *error;
} tpu_abi_Error_Destroy;
typedef struct tpu_abi_Error_Message {
  TPU_ABI_HEAD;
  const PJRT_Error *error;
  /* out */
  const char *message;
  size_t message_size;
} tpu_abi_Error_Message;
typedef struct tpu_abi_Error_GetCode {
  TPU_ABI_HEAD;
  const PJRT_Error *error;
  /* out */
  int code;
} tpu_abi_Error_GetCode;

/* --- plugin */
typedef struct tpu_abi_Plugin_Initialize {
  TPU_ABI_HEAD;
} tpu_abi_Plugin_Initialize;
typedef struct tpu_abi_Plugin_Attributes {
  TPU_ABI_HEAD;
  /* out */
  const tpu_abi_named_value *attributes;
  size_t num_attributes;
} tpu_abi_Plugin_Attributes;

/* --- events */
typedef struct tpu_abi_Event_Destroy {
  TPU_ABI_HEAD;
  PJRT_Event *event;
} tpu_abi_Event_Destroy;
typedef struct tpu_abi_Event_IsReady {
  TPU_ABI_HEAD;
  PJRT_Event *event;
  /* out */
  bool is_ready;
} tpu_abi_Event_IsReady;
typedef struct tpu_abi_Event_Destroy tpu_abi_Event_Error;
typedef struct tpu_abi_Event_Destroy tpu_abi_Event_Await;
typedef void (*tpu_abi_on_ready)(PJRT_Error *error, void *user_arg);
typedef struct tpu_abi_Event_OnReady {
  TPU_ABI_HEAD;
  PJRT_Event *event;
  tpu_abi_on_ready callback;
  void *user_arg;
} tpu_abi_Event_OnReady;

/* --- client */
typedef struct tpu_abi_Client_Create {
  TPU_ABI_HEAD;
  const tpu_abi_named_value *create_options;
  size_t num_options;
  tpu_abi_function kv_get_callback;
  void *kv_get_user_arg;
  tpu_abi_function kv_put_callback;
  void *kv_put_user_arg;
  /* out */
  PJRT_Client *client;
  /* in */
  tpu_abi_function kv_try_get_callback;
  void *kv_try_get_user_arg;
} tpu_abi_Client_Create;
typedef struct tpu_abi_Client_Destroy {
  TPU_ABI_HEAD;
  PJRT_Client *client;
} tpu_abi_Client_Destroy;
typedef struct tpu_abi_Client_PlatformName {
  TPU_ABI_HEAD;
  PJRT_Client *client;
  /* out */
  const char *platform_name;
  size_t platform_name_size;
} tpu_abi_Client_PlatformName;
typedef struct tpu_abi_Client_PlatformVersion {
  TPU_ABI_HEAD;
  PJRT_Client *client;
  /* out */
  const char *platform_version;
  size_t platform_version_size;
} tpu_abi_Client_PlatformVersion;
typedef struct tpu_abi_Client_AddressableDevices {
  TPU_ABI_HEAD;
  PJRT_Client *client;
  /* out */
  PJRT_Device *const *addressable_devices;
  size_t num_addressable_devices;
} tpu_abi_Client_AddressableDevices;
typedef struct tpu_abi_Client_Compile {
  TPU_ABI_HEAD;
  PJRT_Client *client;
  const tpu_abi_program *program;
  const char *compile_options;
  size_t compile_options_size;
  /* out */
  PJRT_LoadedExecutable *executable;
} tpu_abi_Client_Compile;
typedef struct tpu_abi_Client_BufferFromHostBuffer {
  TPU_ABI_HEAD;
  PJRT_Client *client;
  const void *data;
  int type;
  const int64_t *dims;
  size_t num_dims;
  const int64_t *byte_strides;
  size_t num_byte_strides;
  int host_buffer_semantics;
  PJRT_Device *device;
  PJRT_Memory *memory;
  tpu_abi_layout *device_layout;
  /* out */
  PJRT_Event *done_with_host_buffer;
  PJRT_Buffer *buffer;
} tpu_abi_Client_BufferFromHostBuffer;

/* --- devices */
typedef struct tpu_abi_DeviceDescription_Id {
  TPU_ABI_HEAD;
  PJRT_DeviceDescription *device_description;
  /* out */
  int id;
} tpu_abi_DeviceDescription_Id;
typedef struct tpu_abi_DeviceDescription_Kind {
  TPU_ABI_HEAD;
  PJRT_DeviceDescription *device_description;
  /* out */
  const char *device_kind;
  size_t device_kind_size;
} tpu_abi_DeviceDescription_Kind;
typedef struct tpu_abi_Device_GetDescription {
  TPU_ABI_HEAD;
  PJRT_Device *device;
  /* out */
  PJRT_DeviceDescription *device_description;
} tpu_abi_Device_GetDescription;
typedef struct tpu_abi_Device_MemoryStats {
  TPU_ABI_HEAD;
  PJRT_Device *device;
  /* out */
  int64_t bytes_in_use;
  int64_t peak_bytes_in_use;
  bool peak_bytes_in_use_is_set;
  int64_t num_allocs;
  bool num_allocs_is_set;
  int64_t largest_alloc_size;
  bool largest_alloc_size_is_set;
  int64_t bytes_limit;
  bool bytes_limit_is_set;
  int64_t bytes_reserved;
  bool bytes_reserved_is_set;
  int64_t peak_bytes_reserved;
  bool peak_bytes_reserved_is_set;
  int64_t bytes_reservable_limit;
  bool bytes_reservable_limit_is_set;
  int64_t largest_free_block_bytes;
  bool largest_free_block_bytes_is_set;
  int64_t pool_bytes;
  bool pool_bytes_is_set;
  int64_t peak_pool_bytes;
  bool peak_pool_bytes_is_set;
  int64_t peak_allocated_bytes; /* after 0.81 */
  bool peak_allocated_bytes_is_set;
} tpu_abi_Device_MemoryStats;

/* --- executables */
typedef struct tpu_abi_Executable_Destroy {
  TPU_ABI_HEAD;
  PJRT_Executable *executable;
} tpu_abi_Executable_Destroy;
typedef struct tpu_abi_Executable_NumOutputs {
  TPU_ABI_HEAD;
  PJRT_Executable *executable;
  /* out */
  size_t num_outputs;
} tpu_abi_Executable_NumOutputs;
typedef struct tpu_abi_Executable_GetCostAnalysis {
  TPU_ABI_HEAD;
  PJRT_Executable *executable;
  /* out */
  size_t num_properties;
  const tpu_abi_named_value *properties;
} tpu_abi_Executable_GetCostAnalysis;
typedef struct tpu_abi_Executable_GetCompiledMemoryStats {
  TPU_ABI_HEAD;
  PJRT_Executable *executable;
  /* out */
  int64_t generated_code_size_in_bytes;
  int64_t argument_size_in_bytes;
  int64_t output_size_in_bytes;
  int64_t alias_size_in_bytes;
  int64_t temp_size_in_bytes;
  int64_t host_generated_code_size_in_bytes;
  int64_t host_argument_size_in_bytes;
  int64_t host_output_size_in_bytes;
  int64_t host_alias_size_in_bytes;
  int64_t host_temp_size_in_bytes;
  int64_t peak_memory_in_bytes;
  int64_t total_size_in_bytes; /* after 0.81 */
  int64_t total_allocation_bytes;
  int64_t indefinite_allocations;
  int64_t peak_unpadded_heap_bytes;
} tpu_abi_Executable_GetCompiledMemoryStats;
typedef struct PJRT_SerializedExecutable PJRT_SerializedExecutable;
typedef struct tpu_abi_Executable_Serialize {
  TPU_ABI_HEAD;
  const PJRT_Executable *executable;
  /* out */
  const char *serialized_bytes;
  size_t serialized_bytes_size;
  PJRT_SerializedExecutable *serialized_executable; /* backs serialized_bytes; ours to delete */
  void (*serialized_executable_deleter)(PJRT_SerializedExecutable *);
} tpu_abi_Executable_Serialize;
typedef struct tpu_abi_Executable_DeserializeAndLoad {
  TPU_ABI_HEAD;
  PJRT_Client *client;
  const char *serialized_executable;
  size_t serialized_executable_size;
  /* out */
  PJRT_LoadedExecutable *loaded_executable;
  /* in */
  const char *overridden_serialized_compile_options;
  size_t overridden_serialized_compile_options_size;
  void *load_options; /* after 0.81 */
} tpu_abi_Executable_DeserializeAndLoad;
typedef struct tpu_abi_LoadedExecutable_Destroy {
  TPU_ABI_HEAD;
  PJRT_LoadedExecutable *executable;
} tpu_abi_LoadedExecutable_Destroy;
typedef struct tpu_abi_LoadedExecutable_GetExecutable {
  TPU_ABI_HEAD;
  PJRT_LoadedExecutable *loaded_executable;
  /* out */
  PJRT_Executable *executable; /* ours to destroy */
} tpu_abi_LoadedExecutable_GetExecutable;

typedef struct tpu_abi_execute_options {
  TPU_ABI_HEAD;
  void **send_callbacks;
  void **recv_callbacks;
  size_t num_send_ops;
  size_t num_recv_ops;
  int launch_id;
  const int64_t *non_donatable_input_indices;
  size_t num_non_donatable_input_indices;
  void *context;
  const char *call_location;
  size_t num_tasks;
  int *task_ids;
  int64_t *incarnation_ids;
  void *multi_slice_config; /* after 0.81 */
  bool use_major_to_minor_data_layout_for_callbacks;
  void *hlo_output_callbacks;
  size_t num_hlo_output_callbacks;
} tpu_abi_execute_options;
typedef struct tpu_abi_LoadedExecutable_Execute {
  TPU_ABI_HEAD;
  PJRT_LoadedExecutable *executable;
  tpu_abi_execute_options *options;
  PJRT_Buffer *const *const *argument_lists; /* [num_devices][num_args] */
  size_t num_devices;
  size_t num_args;
  PJRT_Buffer **const *output_lists;   /* [num_devices][outputs], filled by the plugin */
  PJRT_Event **device_complete_events; /* NULL or [num_devices], filled by the plugin */
  PJRT_Device *execute_device;
} tpu_abi_LoadedExecutable_Execute;

/* --- buffers */
typedef struct tpu_abi_Buffer_Destroy {
  TPU_ABI_HEAD;
  PJRT_Buffer *buffer;
} tpu_abi_Buffer_Destroy;
typedef struct tpu_abi_Buffer_Dimensions {
  TPU_ABI_HEAD;
  PJRT_Buffer *buffer;
  /* out */
  const int64_t *dims;
  size_t num_dims;
} tpu_abi_Buffer_Dimensions;
typedef struct tpu_abi_Buffer_ElementType {
  TPU_ABI_HEAD;
  PJRT_Buffer *buffer;
  /* out */
  int type;
} tpu_abi_Buffer_ElementType;
typedef struct tpu_abi_Buffer_OnDeviceSizeInBytes {
  TPU_ABI_HEAD;
  PJRT_Buffer *buffer;
  /* out */
  size_t on_device_size_in_bytes;
} tpu_abi_Buffer_OnDeviceSizeInBytes;
typedef struct tpu_abi_Buffer_IsDeleted {
  TPU_ABI_HEAD;
  PJRT_Buffer *buffer;
  /* out */
  bool is_deleted;
} tpu_abi_Buffer_IsDeleted;
typedef struct tpu_abi_Buffer_CopyToDevice {
  TPU_ABI_HEAD;
  PJRT_Buffer *buffer;
  PJRT_Device *dst_device;
  /* out */
  PJRT_Buffer *dst_buffer;
} tpu_abi_Buffer_CopyToDevice;
typedef struct tpu_abi_Buffer_ToHostBuffer {
  TPU_ABI_HEAD;
  PJRT_Buffer *src;
  tpu_abi_layout *host_layout;
  void *dst;
  size_t dst_size;
  /* out */
  PJRT_Event *event;
} tpu_abi_Buffer_ToHostBuffer;
typedef struct tpu_abi_Buffer_ReadyEvent {
  TPU_ABI_HEAD;
  PJRT_Buffer *buffer;
  /* out */
  PJRT_Event *event;
} tpu_abi_Buffer_ReadyEvent;
typedef struct tpu_abi_Buffer_UnsafePointer {
  TPU_ABI_HEAD;
  PJRT_Buffer *buffer;
  /* out */
  uintptr_t buffer_pointer;
} tpu_abi_Buffer_UnsafePointer;

/* --- topologies */
typedef struct tpu_abi_TopologyDescription_Create {
  TPU_ABI_HEAD;
  const char *topology_name;
  size_t topology_name_size;
  const tpu_abi_named_value *create_options;
  size_t num_options;
  /* out */
  PJRT_TopologyDescription *topology;
} tpu_abi_TopologyDescription_Create;
typedef struct tpu_abi_TopologyDescription_Destroy {
  TPU_ABI_HEAD;
  PJRT_TopologyDescription *topology;
} tpu_abi_TopologyDescription_Destroy;
typedef struct tpu_abi_Compile {
  TPU_ABI_HEAD;
  const PJRT_TopologyDescription *topology;
  const tpu_abi_program *program;
  const char *compile_options;
  size_t compile_options_size;
  PJRT_Client *client; /* optional */
  /* out */
  PJRT_Executable *executable;
} tpu_abi_Compile;

#endif
