//! The SDK table: metrics and runtime status.
//!
//! libtpu's table does not say how many functions it has, so they are counted: words that point into the
//! library's own code, rounded down to a size that ever shipped. Metric handles have no destructor; they go
//! with their client, and not wholly then.

use std::{
    ffi::{CStr, c_void},
    fs,
    marker::PhantomData,
    ptr,
};

use crate::{
    CallError, Library,
    abi::{
        self, ClientArgs, CoreStateSummaryArgs, ErrorDestroyArgs, ErrorGetCodeArgs, ErrorGetMessageArgs,
        GetMetricArgs, GetMetricDescriptionArgs, GetMetricValuesArgs, GetRuntimeStatusArgs, LibtpuPointer,
        MAX_SLOTS, RuntimeStatusDestroyArgs, SLOT_COUNTS, SdkCall, SdkTable, SdkVoidCall, slot,
    },
    bounded,
    maps::Memory,
};

/// The export that gives the table.
pub const ENTRY: &str = "GetLibtpuSdkApi";

/// Why a library has no usable SDK.
#[derive(Debug, thiserror::Error)]
pub enum SdkError {
    /// The export is missing.
    #[error("the library does not export {ENTRY}")]
    NoExport,
    /// The export returned NULL.
    #[error("{ENTRY} returned nothing")]
    NoTable,
    /// Fewer functions than any libtpu ever had.
    #[error("the SDK table has {0} functions, fewer than any known libtpu")]
    TooFew(usize),
    /// The process cannot see its own memory map.
    #[error("cannot read /proc/self/maps: {0}")]
    Maps(#[from] std::io::Error),
}

/// The SDK of a loaded libtpu.
#[derive(Debug)]
pub struct Sdk<'lib> {
    /// The counted functions; 0 where libtpu left one out.
    slots: Vec<usize>,
    library: PhantomData<&'lib Library>,
}

/// The largest known size that is no larger than `counted`.
fn known_size(counted: usize) -> Option<usize> {
    SLOT_COUNTS.into_iter().rev().find(|size| *size <= counted)
}

impl<'lib> Sdk<'lib> {
    /// Asks the library for its SDK. This installs libtpu's signal handlers and starts its threads, and without
    /// `TPU_SKIP_MDS_QUERY` in the environment it may not return for minutes.
    ///
    /// # Errors
    /// When there is none, or one smaller than any known.
    pub fn load(library: &'lib Library) -> Result<Self, SdkError> {
        // SAFETY: libtpu exports this name with this type.
        let get = unsafe { library.function::<abi::GetLibtpuSdkApi>(ENTRY) }.ok_or(SdkError::NoExport)?;
        let inside = library.address(ENTRY).ok_or(SdkError::NoExport)?;
        // SAFETY: it takes nothing and returns a table that lives as long as the process.
        let table = unsafe { get() };
        if table.is_null() {
            return Err(SdkError::NoTable);
        }
        let memory = Memory::parse(&fs::read_to_string("/proc/self/maps")?, inside);
        let counted = Self::count(table, &memory);
        let size = known_size(counted.len()).ok_or(SdkError::TooFew(counted.len()))?;
        Ok(Self { slots: counted[..size].to_vec(), library: PhantomData })
    }

    /// The leading words of the table that point into the library's code.
    fn count(table: *const SdkTable, memory: &Memory) -> Vec<usize> {
        let first = table.wrapping_byte_add(size_of::<SdkTable>()).cast::<usize>();
        (0..MAX_SLOTS)
            .map(|at| first.wrapping_add(at))
            .take_while(|word| memory.is_readable(*word as usize))
            // SAFETY: the word lies in memory that can be read.
            .map(|word| unsafe { word.read_unaligned() })
            .take_while(|target| memory.is_code(*target))
            .collect()
    }

    /// How many functions the table has: 9, 12, 15 or 17.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    fn call<A>(&self, slot: usize, name: &'static str, args: &mut A) -> Result<(), CallError> {
        let target = *self.slots.get(slot).ok_or(CallError::Missing(name))?;
        // SAFETY: the word points into the library's code, and a slot of this position has this type.
        let function = unsafe { std::mem::transmute::<usize, SdkCall>(target) };
        // SAFETY: `args` is the struct that this slot takes, all of it initialised.
        let error = unsafe { function(ptr::from_mut(args).cast::<c_void>()) };
        if error.is_null() { Ok(()) } else { Err(self.take(error)) }
    }

    fn call_void<A>(&self, slot: usize, args: &mut A) {
        let Some(target) = self.slots.get(slot) else { return };
        // SAFETY: the word points into the library's code, and the slots 0x08 and 0x10 have this type.
        let function = unsafe { std::mem::transmute::<usize, SdkVoidCall>(*target) };
        // SAFETY: `args` is the struct that this slot takes, all of it initialised.
        unsafe { function(ptr::from_mut(args).cast::<c_void>()) };
    }

    /// Reads an error and frees it.
    fn take(&self, error: LibtpuPointer) -> CallError {
        let mut text = ErrorGetMessageArgs { error, message: ptr::null(), message_size: 0 };
        self.call_void(slot::ERROR_GET_MESSAGE, &mut text);
        // SAFETY: the message belongs to the error, which is still there.
        let message = unsafe { bounded::text("an error message", text.message, text.message_size) };
        let mut code = ErrorGetCodeArgs { error, code: 0 };
        // An error about the error is of no use; the code then stays 0.
        if let Some(target) = self.slots.get(slot::ERROR_GET_CODE) {
            // SAFETY: as in `call`.
            let function = unsafe { std::mem::transmute::<usize, SdkCall>(*target) };
            // SAFETY: as in `call`.
            unsafe { function(ptr::from_mut(&mut code).cast::<c_void>()) };
        }
        self.call_void(slot::ERROR_DESTROY, &mut ErrorDestroyArgs { error });
        match message {
            Ok(message) => CallError::Status { code: code.code, message },
            Err(absurd) => absurd,
        }
    }

    /// A client, destroyed with the value.
    ///
    /// # Errors
    /// What libtpu says.
    pub fn client(&self) -> Result<Client<'_>, CallError> {
        let mut args = ClientArgs { client: ptr::null_mut() };
        self.call(slot::CLIENT_CREATE, "Client_Create", &mut args)?;
        if args.client.is_null() {
            return Err(CallError::Null("client"));
        }
        Ok(Client { sdk: self, client: args.client })
    }
}

/// What one metric said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metric {
    /// libtpu's description.
    pub description: String,
    /// Its values, in libtpu's own formats; empty when nobody serves it.
    pub values: Vec<String>,
}

/// A client of the SDK. It talks to this host's metric services only, never to a device.
#[derive(Debug)]
pub struct Client<'sdk> {
    sdk: &'sdk Sdk<'sdk>,
    client: LibtpuPointer,
}

impl Client<'_> {
    /// One metric. Below 0.0.24 a name that this libtpu does not know aborts the process. It may block for as long as the metric service does.
    ///
    /// # Errors
    /// What libtpu says, or an answer of absurd size.
    pub fn metric(&self, name: &CStr) -> Result<Metric, CallError> {
        let mut get = GetMetricArgs { client: self.client, name: name.as_ptr(), metric: ptr::null_mut() };
        self.sdk.call(slot::GET_METRIC, "GetMetric", &mut get)?;
        let metric = get.metric;
        if metric.is_null() {
            return Err(CallError::Null("metric"));
        }
        let mut text = GetMetricDescriptionArgs { metric, description: ptr::null(), description_size: 0 };
        self.sdk.call(slot::GET_METRIC_DESCRIPTION, "GetMetricDescription", &mut text)?;
        // SAFETY: the text belongs to the metric, which lives as long as the client.
        let description = unsafe { bounded::text("a description", text.description, text.description_size) }?;
        let mut values = GetMetricValuesArgs { metric, values: ptr::null(), count: 0 };
        self.sdk.call(slot::GET_METRIC_VALUES, "GetMetricValues", &mut values)?;
        // SAFETY: the array is good until the next such call, the strings as long as the metric.
        let values = unsafe { bounded::texts("values", values.values, values.count) }?;
        Ok(Metric { description, values })
    }

    /// The state of the cores: a serialised `tpu.monitoring.runtime.GetTpuRuntimeStatusResponse`.
    ///
    /// # Errors
    /// What libtpu says, or an answer of absurd size.
    pub fn runtime_status(&self, include_hlo_info: bool) -> Result<Vec<u8>, CallError> {
        if self.sdk.slots() <= slot::RUNTIME_STATUS_DESTROY {
            return Err(CallError::Missing("GetRuntimeStatus"));
        }
        let mut get = GetRuntimeStatusArgs { client: self.client, include_hlo_info, status: ptr::null_mut() };
        self.sdk.call(slot::GET_RUNTIME_STATUS, "GetRuntimeStatus", &mut get)?;
        if get.status.is_null() {
            return Err(CallError::Null("runtime status"));
        }
        let mut summary = CoreStateSummaryArgs { status: get.status, bytes: ptr::null(), size: 0 };
        let asked = self.sdk.call(
            slot::RUNTIME_STATUS_GET_CORE_STATE_SUMMARY,
            "RuntimeStatus_GetCoreStateSummary",
            &mut summary,
        );
        // SAFETY: the bytes belong to the status, which is destroyed after the copy.
        let bytes = asked
            .and_then(|()| unsafe { bounded::bytes("a runtime status", summary.bytes.cast(), summary.size) });
        let mut end = RuntimeStatusDestroyArgs { status: get.status };
        self.sdk.call(slot::RUNTIME_STATUS_DESTROY, "RuntimeStatus_Destroy", &mut end)?;
        bytes
    }
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        let mut args = ClientArgs { client: self.client };
        // Nothing is left to do about a client that does not want to go.
        let _ = self.sdk.call(slot::CLIENT_DESTROY, "Client_Destroy", &mut args);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_round_down_to_what_shipped() {
        let sizes: Vec<_> = (0..=17).map(known_size).collect();
        assert_eq!(sizes[..9], [None; 9]);
        assert_eq!(sizes[9..12], [Some(9); 3]);
        assert_eq!(sizes[12..15], [Some(12); 3]);
        assert_eq!(sizes[15..17], [Some(15); 2]);
        assert_eq!(sizes[17], Some(17));
    }

    #[test]
    fn counting_stops_at_the_first_word_that_is_no_code() {
        let mut table = vec![1u64 << 32];
        table.extend([0x2000, 0x2008, 0x2010, 0xdead, 0x2018]);
        let heap = table.as_ptr() as usize;
        let maps = format!(
            "2000-3000 r-xp 0 fe:00 7 /a.so\n{:x}-{:x} rw-p 0 00:00 0\n",
            heap,
            heap + table.len() * size_of::<u64>()
        );
        let words = Sdk::count(table.as_ptr().cast(), &Memory::parse(&maps, 0x2000));
        assert_eq!(words, [0x2000, 0x2008, 0x2010]);
        // A table at the very end of the readable memory is not read beyond it.
        table.truncate(4);
        let maps = format!(
            "2000-3000 r-xp 0 fe:00 7 /a.so\n{:x}-{:x} rw-p 0 00:00 0\n",
            heap,
            heap + 4 * size_of::<u64>()
        );
        assert_eq!(Sdk::count(table.as_ptr().cast(), &Memory::parse(&maps, 0x2000)).len(), 3);
    }
}
