/* Our declarations against an upstream pjrt_c_api.h (any version from 0.81), where one is given (TPU_PJRT_HEADER_DIR). */
#include "base/test.h"
#include "pjrt/pjrt_abi.h"

#ifdef TPU_HAVE_PJRT_HEADER
#include <pjrt_c_api.h>

TEST(slots) {
#define SLOT(name) \
  CHECK_INT(offsetof(PJRT_Api, PJRT_##name), offsetof(tpu_abi, slots) + TPU_SLOT_##name * sizeof(tpu_abi_function));
#include "pjrt/pjrt_slots.inc"
  CHECK_INT(offsetof(PJRT_Api, pjrt_api_version), offsetof(tpu_abi, version));
  CHECK_INT(offsetof(PJRT_Api_Version, major_version), offsetof(tpu_abi_version, major));
  CHECK_INT(offsetof(PJRT_Api_Version, minor_version), offsetof(tpu_abi_version, minor));
  CHECK_INT(sizeof(PJRT_Api_Version), sizeof(tpu_abi_version));
}

/* Ours may be larger, where the header at hand is older. */
#define SIZE(theirs, ours)                                              \
  do {                                                                  \
    CHECK(sizeof(theirs) <= sizeof(ours));                              \
    if (PJRT_API_MINOR >= 114) CHECK_INT(sizeof(theirs), sizeof(ours)); \
    CHECK_INT(offsetof(ours, extension_start), sizeof(size_t));         \
  } while (0)
#define FIELD(theirs, ours, their_field, our_field)                          \
  do {                                                                       \
    CHECK_INT(offsetof(theirs, their_field), offsetof(ours, our_field));     \
    CHECK_INT(sizeof((theirs){0}.their_field), sizeof((ours){0}.our_field)); \
  } while (0)
#define ARGS(name) SIZE(PJRT_##name##_Args, tpu_abi_##name)
#define F(name, field) FIELD(PJRT_##name##_Args, tpu_abi_##name, field, field)

TEST(values) {
  SIZE(PJRT_NamedValue, tpu_abi_named_value);
  FIELD(PJRT_NamedValue, tpu_abi_named_value, name, name);
  FIELD(PJRT_NamedValue, tpu_abi_named_value, name_size, name_size);
  FIELD(PJRT_NamedValue, tpu_abi_named_value, type, type);
  FIELD(PJRT_NamedValue, tpu_abi_named_value, int64_value, value.int64_value);
  FIELD(PJRT_NamedValue, tpu_abi_named_value, value_size, value_size);
  CHECK_INT(PJRT_NamedValue_kString, TPU_VALUE_STRING);
  CHECK_INT(PJRT_NamedValue_kInt64, TPU_VALUE_INT64);
  CHECK_INT(PJRT_NamedValue_kInt64List, TPU_VALUE_INT64_LIST);
  CHECK_INT(PJRT_NamedValue_kFloat, TPU_VALUE_FLOAT);
  CHECK_INT(PJRT_NamedValue_kBool, TPU_VALUE_BOOL);
  CHECK_INT(PJRT_HostBufferSemantics_kImmutableOnlyDuringCall, TPU_HOST_IMMUTABLE_ONLY_DURING_CALL);
  CHECK_INT(PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes, TPU_HOST_IMMUTABLE_UNTIL_TRANSFER_COMPLETES);
  CHECK_INT(PJRT_HostBufferSemantics_kImmutableZeroCopy, TPU_HOST_IMMUTABLE_ZERO_COPY);
  CHECK_INT(PJRT_Error_Code_UNAUTHENTICATED, TPU_UNAUTHENTICATED);
  CHECK_INT(PJRT_Error_Code_RESOURCE_EXHAUSTED, TPU_RESOURCE_EXHAUSTED);
  SIZE(PJRT_Buffer_MemoryLayout, tpu_abi_layout);
  FIELD(PJRT_Buffer_MemoryLayout, tpu_abi_layout, tiled.minor_to_major, tiled.minor_to_major);
  FIELD(PJRT_Buffer_MemoryLayout, tpu_abi_layout, tiled.minor_to_major_size, tiled.minor_to_major_size);
  FIELD(PJRT_Buffer_MemoryLayout, tpu_abi_layout, tiled.num_tiles, tiled.num_tiles);
  FIELD(PJRT_Buffer_MemoryLayout, tpu_abi_layout, type, type);
  CHECK_INT(PJRT_Buffer_MemoryLayout_Type_Tiled, TPU_LAYOUT_TILED);
  SIZE(PJRT_Program, tpu_abi_program);
  FIELD(PJRT_Program, tpu_abi_program, code, code);
  FIELD(PJRT_Program, tpu_abi_program, code_size, code_size);
  FIELD(PJRT_Program, tpu_abi_program, format, format);
  FIELD(PJRT_Program, tpu_abi_program, format_size, format_size);
  CHECK_INT(offsetof(PJRT_Extension_Base, type), offsetof(tpu_abi_extension, type));
  CHECK_INT(offsetof(PJRT_Extension_Base, next), offsetof(tpu_abi_extension, next));
}

TEST(dtypes) {
#define TYPE(name) CHECK_INT(PJRT_Buffer_Type_##name, tpu_pjrt_##name)
  enum {
    tpu_pjrt_PRED = 1,
    tpu_pjrt_S64 = 5,
    tpu_pjrt_U8 = 6,
    tpu_pjrt_F16 = 10,
    tpu_pjrt_BF16 = 13,
    tpu_pjrt_C128 = 15,
    tpu_pjrt_F8E8M0FNU = 28
  };
  TYPE(PRED);
  TYPE(S64);
  TYPE(U8);
  TYPE(F16);
  TYPE(BF16);
  TYPE(C128);
  TYPE(F8E8M0FNU);
}

TEST(args) {
  ARGS(Error_Destroy);
  ARGS(Error_Message);
  ARGS(Error_GetCode);
  F(Error_Message, message);
  F(Error_Message, message_size);
  F(Error_GetCode, code);
  F(Error_GetCode, error);
  ARGS(Plugin_Initialize);
  ARGS(Plugin_Attributes);
  F(Plugin_Attributes, attributes);
  F(Plugin_Attributes, num_attributes);
  ARGS(Event_Destroy);
  ARGS(Event_IsReady);
  ARGS(Event_Error);
  ARGS(Event_Await);
  ARGS(Event_OnReady);
  F(Event_IsReady, is_ready);
  F(Event_OnReady, callback);
  F(Event_OnReady, user_arg);
  ARGS(Client_Create);
  ARGS(Client_Destroy);
  ARGS(Client_PlatformName);
  ARGS(Client_PlatformVersion);
  F(Client_Create, create_options);
  F(Client_Create, num_options);
  F(Client_Create, client);
  F(Client_Create, kv_try_get_user_arg);
  F(Client_PlatformName, platform_name_size);
  ARGS(Client_AddressableDevices);
  ARGS(Client_Compile);
  ARGS(Client_BufferFromHostBuffer);
  F(Client_AddressableDevices, addressable_devices);
  F(Client_AddressableDevices, num_addressable_devices);
  F(Client_Compile, program);
  F(Client_Compile, compile_options_size);
  F(Client_Compile, executable);
  F(Client_BufferFromHostBuffer, data);
  F(Client_BufferFromHostBuffer, type);
  F(Client_BufferFromHostBuffer, dims);
  F(Client_BufferFromHostBuffer, num_dims);
  F(Client_BufferFromHostBuffer, host_buffer_semantics);
  F(Client_BufferFromHostBuffer, device);
  F(Client_BufferFromHostBuffer, done_with_host_buffer);
  F(Client_BufferFromHostBuffer, buffer);
  ARGS(DeviceDescription_Id);
  ARGS(DeviceDescription_Kind);
  ARGS(Device_GetDescription);
  ARGS(Device_MemoryStats);
  F(DeviceDescription_Id, id);
  F(DeviceDescription_Kind, device_kind_size);
  F(Device_GetDescription, device_description);
  F(Device_MemoryStats, bytes_in_use);
  F(Device_MemoryStats, peak_bytes_in_use);
  F(Device_MemoryStats, peak_bytes_in_use_is_set);
  F(Device_MemoryStats, bytes_limit);
  F(Device_MemoryStats, bytes_limit_is_set);
  F(Device_MemoryStats, peak_pool_bytes);
  ARGS(Executable_Destroy);
  ARGS(Executable_NumOutputs);
  ARGS(Executable_GetCostAnalysis);
  F(Executable_NumOutputs, num_outputs);
  F(Executable_GetCostAnalysis, num_properties);
  F(Executable_GetCostAnalysis, properties);
  ARGS(Executable_GetCompiledMemoryStats);
  ARGS(Executable_Serialize);
  ARGS(Executable_DeserializeAndLoad);
  F(Executable_GetCompiledMemoryStats, generated_code_size_in_bytes);
  F(Executable_GetCompiledMemoryStats, temp_size_in_bytes);
  F(Executable_GetCompiledMemoryStats, peak_memory_in_bytes);
  F(Executable_Serialize, serialized_bytes);
  F(Executable_Serialize, serialized_bytes_size);
  F(Executable_Serialize, serialized_executable);
  F(Executable_Serialize, serialized_executable_deleter);
  F(Executable_DeserializeAndLoad, loaded_executable);
  F(Executable_DeserializeAndLoad, overridden_serialized_compile_options_size);
  ARGS(LoadedExecutable_Destroy);
  ARGS(LoadedExecutable_GetExecutable);
  ARGS(LoadedExecutable_Execute);
  F(LoadedExecutable_GetExecutable, executable);
  F(LoadedExecutable_Execute, options);
  F(LoadedExecutable_Execute, argument_lists);
  F(LoadedExecutable_Execute, num_args);
  F(LoadedExecutable_Execute, output_lists);
  F(LoadedExecutable_Execute, device_complete_events);
  F(LoadedExecutable_Execute, execute_device);
  SIZE(PJRT_ExecuteOptions, tpu_abi_execute_options);
  FIELD(PJRT_ExecuteOptions, tpu_abi_execute_options, launch_id, launch_id);
  FIELD(PJRT_ExecuteOptions, tpu_abi_execute_options, non_donatable_input_indices, non_donatable_input_indices);
  FIELD(PJRT_ExecuteOptions, tpu_abi_execute_options, num_non_donatable_input_indices, num_non_donatable_input_indices);
  FIELD(PJRT_ExecuteOptions, tpu_abi_execute_options, incarnation_ids, incarnation_ids);
  ARGS(Buffer_Destroy);
  ARGS(Buffer_Dimensions);
  ARGS(Buffer_ElementType);
  ARGS(Buffer_OnDeviceSizeInBytes);
  F(Buffer_Dimensions, dims);
  F(Buffer_Dimensions, num_dims);
  F(Buffer_ElementType, type);
  F(Buffer_OnDeviceSizeInBytes, on_device_size_in_bytes);
  ARGS(Buffer_IsDeleted);
  ARGS(Buffer_CopyToDevice);
  ARGS(Buffer_ToHostBuffer);
  ARGS(Buffer_ReadyEvent);
  F(Buffer_IsDeleted, is_deleted);
  F(Buffer_CopyToDevice, dst_device);
  F(Buffer_CopyToDevice, dst_buffer);
  F(Buffer_ToHostBuffer, host_layout);
  F(Buffer_ToHostBuffer, dst);
  F(Buffer_ToHostBuffer, dst_size);
  F(Buffer_ToHostBuffer, event);
  F(Buffer_ReadyEvent, event);
  ARGS(Buffer_UnsafePointer);
  F(Buffer_UnsafePointer, buffer_pointer);
  ARGS(TopologyDescription_Create);
  ARGS(TopologyDescription_Destroy);
  ARGS(Compile);
  F(TopologyDescription_Create, topology_name_size);
  F(TopologyDescription_Create, num_options);
  F(TopologyDescription_Create, topology);
  F(Compile, topology);
  F(Compile, program);
  F(Compile, compile_options);
  F(Compile, client);
  F(Compile, executable);
}

TEST_MAIN(TEST_CASE(slots), TEST_CASE(values), TEST_CASE(dtypes), TEST_CASE(args));
#else
TEST(no_header) { SKIP("no upstream pjrt_c_api.h: configure with -DTPU_PJRT_HEADER_DIR"); }
TEST_MAIN(TEST_CASE(no_header));
#endif
