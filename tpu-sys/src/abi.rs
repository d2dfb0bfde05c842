//! The structs and function types of libtpu's C interfaces, as they lie in memory.
//!
//! Offsets are those of 0.0.5 to 0.0.52 on x86-64; the tests below hold them. Names are Google's. Nothing
//! here may hold logic.
#![allow(missing_docs, reason = "the fields carry the names of the C interface")]

use std::ffi::{c_char, c_int, c_void};

/// An opaque object of libtpu.
pub type LibtpuPointer = *mut c_void;

/// Functions of the SDK table by position (offset 0x08 + 8 * position).
pub mod slot {
    pub const ERROR_GET_MESSAGE: usize = 0;
    pub const ERROR_DESTROY: usize = 1;
    pub const ERROR_GET_CODE: usize = 2;
    pub const CLIENT_CREATE: usize = 3;
    pub const CLIENT_DESTROY: usize = 4;
    pub const GET_METRIC: usize = 9;
    pub const GET_METRIC_DESCRIPTION: usize = 10;
    pub const GET_METRIC_VALUES: usize = 11;
    pub const GET_RUNTIME_STATUS: usize = 12;
    pub const RUNTIME_STATUS_GET_CORE_STATE_SUMMARY: usize = 13;
    pub const RUNTIME_STATUS_DESTROY: usize = 14;
}

/// The table sizes that ever shipped.
pub const SLOT_COUNTS: [usize; 4] = [9, 12, 15, 17];
/// No word beyond this one is ever read.
pub const MAX_SLOTS: usize = 17;

/// Header of the SDK table; the function pointers follow at 0x08. It says nothing of how many there are.
#[repr(C)]
#[derive(Debug)]
pub struct SdkTable {
    pub major: u32,
    pub minor: u32,
    /// `9..=17` words, by version.
    pub slots: [usize; 0],
}

/// `GetLibtpuSdkApi`.
pub type GetLibtpuSdkApi = unsafe extern "C" fn() -> *const SdkTable;
/// Slots that return an error, or NULL.
pub type SdkCall = unsafe extern "C" fn(args: *mut c_void) -> LibtpuPointer;
/// Slots 0x08 and 0x10: what is in the return register means nothing.
pub type SdkVoidCall = unsafe extern "C" fn(args: *mut c_void);

#[repr(C)]
#[derive(Debug)]
pub struct ErrorGetMessageArgs {
    pub error: LibtpuPointer,
    pub message: *const c_char,
    pub message_size: usize,
}

#[repr(C)]
#[derive(Debug)]
pub struct ErrorDestroyArgs {
    pub error: LibtpuPointer,
}

#[repr(C)]
#[derive(Debug)]
pub struct ErrorGetCodeArgs {
    pub error: LibtpuPointer,
    /// Four bytes; the four after it are never written.
    pub code: i32,
}

#[repr(C)]
#[derive(Debug)]
pub struct ClientArgs {
    pub client: LibtpuPointer,
}

#[repr(C)]
#[derive(Debug)]
pub struct GetMetricArgs {
    pub client: LibtpuPointer,
    pub name: *const c_char,
    pub metric: LibtpuPointer,
}

#[repr(C)]
#[derive(Debug)]
pub struct GetMetricDescriptionArgs {
    pub metric: LibtpuPointer,
    pub description: *const c_char,
    pub description_size: usize,
}

#[repr(C)]
#[derive(Debug)]
pub struct GetMetricValuesArgs {
    pub metric: LibtpuPointer,
    pub values: *const *const c_char,
    pub count: usize,
}

#[repr(C)]
#[derive(Debug)]
pub struct GetRuntimeStatusArgs {
    pub client: LibtpuPointer,
    pub include_hlo_info: bool,
    pub status: LibtpuPointer,
}

#[repr(C)]
#[derive(Debug)]
pub struct CoreStateSummaryArgs {
    pub status: LibtpuPointer,
    pub bytes: *const c_char,
    pub size: usize,
}

#[repr(C)]
#[derive(Debug)]
pub struct RuntimeStatusDestroyArgs {
    pub status: LibtpuPointer,
}

/// `PJRT_Api_Version`.
#[repr(C)]
#[derive(Debug)]
pub struct PjrtApiVersion {
    pub struct_size: usize,
    pub extension_start: *const c_void,
    pub major: c_int,
    pub minor: c_int,
}

/// Header of `PJRT_Api`; the functions after it are none of our business.
#[repr(C)]
#[derive(Debug)]
pub struct PjrtApi {
    pub struct_size: usize,
    pub extension_start: *const PjrtExtension,
    pub version: PjrtApiVersion,
}

/// `GetPjrtApi`.
pub type GetPjrtApi = unsafe extern "C" fn() -> *const PjrtApi;

/// `PJRT_Extension_Base`.
#[repr(C)]
#[derive(Debug)]
pub struct PjrtExtension {
    pub struct_size: usize,
    pub kind: c_int,
    pub next: *const PjrtExtension,
}

/// The type of the profiler extension in the chain.
pub const PROFILER_EXTENSION: c_int = 1;

/// `PJRT_Profiler_Extension`, 40 bytes.
#[repr(C)]
#[derive(Debug)]
pub struct ProfilerExtension {
    pub base: PjrtExtension,
    pub api: *const ProfilerApi,
    pub traceme_context_id: i64,
}

/// `PLUGIN_Profiler_Api` up to what every version has; from 0.0.45 on three more functions follow.
#[repr(C)]
#[derive(Debug)]
pub struct ProfilerApi {
    pub struct_size: usize,
    pub private: *mut c_void,
    pub error_destroy: Option<unsafe extern "C" fn(*mut ProfilerErrorDestroyArgs)>,
    pub error_message: Option<unsafe extern "C" fn(*mut ProfilerErrorMessageArgs)>,
    pub error_get_code: Option<unsafe extern "C" fn(*mut ProfilerErrorGetCodeArgs) -> LibtpuPointer>,
    pub create: Option<unsafe extern "C" fn(*mut ProfilerCreateArgs) -> LibtpuPointer>,
    pub destroy: Option<unsafe extern "C" fn(*mut ProfilerArgs) -> LibtpuPointer>,
    pub start: Option<unsafe extern "C" fn(*mut ProfilerArgs) -> LibtpuPointer>,
    pub stop: Option<unsafe extern "C" fn(*mut ProfilerArgs) -> LibtpuPointer>,
    pub collect_data: Option<unsafe extern "C" fn(*mut ProfilerCollectDataArgs) -> LibtpuPointer>,
}

/// Size of `PLUGIN_Profiler_Api` up to 0.0.43.2.
pub const PROFILER_API_SIZE: usize = 80;
/// Size of `PLUGIN_Profiler_Api` from 0.0.45 on.
pub const PROFILER_API_SIZE_CONSUME: usize = 104;

#[repr(C)]
#[derive(Debug)]
pub struct ProfilerErrorDestroyArgs {
    pub struct_size: usize,
    pub private: *mut c_void,
    pub error: LibtpuPointer,
}

#[repr(C)]
#[derive(Debug)]
pub struct ProfilerErrorMessageArgs {
    pub struct_size: usize,
    pub private: *mut c_void,
    pub error: LibtpuPointer,
    pub message: *const c_char,
    pub message_size: usize,
}

#[repr(C)]
#[derive(Debug)]
pub struct ProfilerErrorGetCodeArgs {
    pub struct_size: usize,
    pub private: *mut c_void,
    pub error: LibtpuPointer,
    pub code: c_int,
}

#[repr(C)]
#[derive(Debug)]
pub struct ProfilerCreateArgs {
    pub struct_size: usize,
    pub options: *const c_char,
    pub options_size: usize,
    pub profiler: LibtpuPointer,
}

/// Arguments of destroy, start and stop.
#[repr(C)]
#[derive(Debug)]
pub struct ProfilerArgs {
    pub struct_size: usize,
    pub profiler: LibtpuPointer,
}

#[repr(C)]
#[derive(Debug)]
pub struct ProfilerCollectDataArgs {
    pub struct_size: usize,
    pub profiler: LibtpuPointer,
    pub buffer: *const u8,
    pub buffer_size: usize,
}

/// The legacy exports, by symbol name.
pub mod legacy {
    use super::{LibtpuPointer, c_char, c_int};

    /// `TpuStatus_New`.
    pub type StatusNew = unsafe extern "C" fn() -> LibtpuPointer;
    /// `TpuStatus_Free`.
    pub type StatusFree = unsafe extern "C" fn(LibtpuPointer);
    /// `TpuStatus_Message`.
    pub type StatusMessage = unsafe extern "C" fn(LibtpuPointer) -> *const c_char;
    /// `TpuStatus_Code`.
    pub type StatusCode = unsafe extern "C" fn(LibtpuPointer) -> c_int;
    /// `TpuStatus_Ok`.
    pub type StatusOk = unsafe extern "C" fn(LibtpuPointer) -> bool;
    /// `TpuProfiler_Create`.
    pub type Create = unsafe extern "C" fn(*mut LibtpuPointer, LibtpuPointer);
    /// `TpuProfiler_Start` and `TpuProfiler_Stop`.
    pub type Control = unsafe extern "C" fn(LibtpuPointer, LibtpuPointer);
    /// `TpuProfiler_CollectData`.
    pub type CollectData = unsafe extern "C" fn(LibtpuPointer, LibtpuPointer, *mut u8, *mut usize);
    /// `TpuProfiler_Destroy`.
    pub type Destroy = unsafe extern "C" fn(LibtpuPointer);
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    #[test]
    fn sdk_structs_lie_as_measured() {
        assert_eq!(offset_of!(SdkTable, slots), 0x08);
        assert_eq!((offset_of!(SdkTable, major), offset_of!(SdkTable, minor)), (0, 4));
        assert_eq!(offset_of!(ErrorGetMessageArgs, message), 8);
        assert_eq!(offset_of!(ErrorGetMessageArgs, message_size), 0x10);
        assert_eq!(size_of::<ErrorGetMessageArgs>(), 0x18);
        assert_eq!(offset_of!(ErrorGetCodeArgs, code), 8);
        assert_eq!(offset_of!(GetMetricArgs, name), 8);
        assert_eq!(offset_of!(GetMetricArgs, metric), 0x10);
        assert_eq!(offset_of!(GetMetricDescriptionArgs, description), 8);
        assert_eq!(offset_of!(GetMetricDescriptionArgs, description_size), 0x10);
        assert_eq!(offset_of!(GetMetricValuesArgs, values), 8);
        assert_eq!(offset_of!(GetMetricValuesArgs, count), 0x10);
        assert_eq!(offset_of!(GetRuntimeStatusArgs, include_hlo_info), 8);
        assert_eq!(offset_of!(GetRuntimeStatusArgs, status), 0x10);
        assert_eq!(offset_of!(CoreStateSummaryArgs, bytes), 8);
        assert_eq!(offset_of!(CoreStateSummaryArgs, size), 0x10);
        assert_eq!((size_of::<ErrorDestroyArgs>(), size_of::<ClientArgs>()), (8, 8));
        assert_eq!(size_of::<RuntimeStatusDestroyArgs>(), 8);
    }

    #[test]
    fn sdk_slots_have_their_offsets() {
        let offset = |slot: usize| 0x08 + 8 * slot;
        assert_eq!(offset(slot::ERROR_GET_MESSAGE), 0x08);
        assert_eq!(offset(slot::ERROR_DESTROY), 0x10);
        assert_eq!(offset(slot::ERROR_GET_CODE), 0x18);
        assert_eq!(offset(slot::CLIENT_CREATE), 0x20);
        assert_eq!(offset(slot::CLIENT_DESTROY), 0x28);
        assert_eq!(offset(slot::GET_METRIC), 0x50);
        assert_eq!(offset(slot::GET_METRIC_DESCRIPTION), 0x58);
        assert_eq!(offset(slot::GET_METRIC_VALUES), 0x60);
        assert_eq!(offset(slot::GET_RUNTIME_STATUS), 0x68);
        assert_eq!(offset(slot::RUNTIME_STATUS_GET_CORE_STATE_SUMMARY), 0x70);
        assert_eq!(offset(slot::RUNTIME_STATUS_DESTROY), 0x78);
    }

    #[test]
    fn pjrt_structs_lie_as_measured() {
        assert_eq!(offset_of!(PjrtApi, extension_start), 0x08);
        assert_eq!(offset_of!(PjrtApi, version), 0x10);
        assert_eq!(offset_of!(PjrtApi, version) + offset_of!(PjrtApiVersion, major), 0x20);
        assert_eq!(offset_of!(PjrtApi, version) + offset_of!(PjrtApiVersion, minor), 0x24);
        assert_eq!((size_of::<PjrtApi>(), size_of::<PjrtApiVersion>()), (0x28, 24));
        assert_eq!(offset_of!(PjrtExtension, kind), 8);
        assert_eq!(offset_of!(PjrtExtension, next), 0x10);
        assert_eq!(offset_of!(ProfilerExtension, api), 0x18);
        assert_eq!(size_of::<ProfilerExtension>(), 40);
    }

    #[test]
    fn profiler_structs_lie_as_measured() {
        assert_eq!(size_of::<ProfilerApi>(), PROFILER_API_SIZE);
        let functions = [
            offset_of!(ProfilerApi, error_destroy),
            offset_of!(ProfilerApi, error_message),
            offset_of!(ProfilerApi, error_get_code),
            offset_of!(ProfilerApi, create),
            offset_of!(ProfilerApi, destroy),
            offset_of!(ProfilerApi, start),
            offset_of!(ProfilerApi, stop),
            offset_of!(ProfilerApi, collect_data),
        ];
        assert_eq!(functions, [0x10, 0x18, 0x20, 0x28, 0x30, 0x38, 0x40, 0x48]);
        assert_eq!(size_of::<ProfilerErrorDestroyArgs>(), 24);
        assert_eq!(size_of::<ProfilerErrorMessageArgs>(), 40);
        assert_eq!(offset_of!(ProfilerErrorMessageArgs, message), 0x18);
        assert_eq!(offset_of!(ProfilerErrorMessageArgs, message_size), 0x20);
        // The C struct's size counts no padding at its end; the wrapper passes 28.
        assert_eq!(offset_of!(ProfilerErrorGetCodeArgs, code), 0x18);
        assert_eq!(size_of::<ProfilerCreateArgs>(), 32);
        assert_eq!(offset_of!(ProfilerCreateArgs, profiler), 0x18);
        assert_eq!(size_of::<ProfilerArgs>(), 16);
        assert_eq!(size_of::<ProfilerCollectDataArgs>(), 32);
        assert_eq!(offset_of!(ProfilerCollectDataArgs, buffer), 0x10);
        assert_eq!(offset_of!(ProfilerCollectDataArgs, buffer_size), 0x18);
    }
}
