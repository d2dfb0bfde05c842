//! The PJRT header, its chain of extensions, and the profiler extension.
//!
//! Asking for the header starts no thread, installs no handler and touches no device. The profiler traces the
//! process that calls it and no other.

use std::{marker::PhantomData, ptr};

use crate::{
    CallError, Library, MAX_EXTENSIONS,
    abi::{
        self, LibtpuPointer, PROFILER_API_SIZE, PROFILER_EXTENSION, PjrtApi, PjrtExtension, ProfilerApi,
        ProfilerArgs, ProfilerCollectDataArgs, ProfilerCreateArgs, ProfilerErrorDestroyArgs,
        ProfilerErrorGetCodeArgs, ProfilerErrorMessageArgs, ProfilerExtension,
    },
    bounded,
};

/// Size that C gives `PLUGIN_Profiler_Error_GetCode_Args`: without the padding at its end.
const ERROR_GET_CODE_ARGS_SIZE: usize = 28;

/// One extension of the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extension {
    /// Its type.
    pub kind: i32,
    /// Its size in bytes.
    pub size: usize,
}

/// What a library says of its PJRT interface.
#[derive(Debug)]
pub struct Pjrt<'lib> {
    /// Major version.
    pub major: i32,
    /// Minor version.
    pub minor: i32,
    /// Size of the whole function table.
    pub api_size: usize,
    /// The extensions in the order of the chain, at most [`MAX_EXTENSIONS`].
    pub extensions: Vec<Extension>,
    profiler: *const ProfilerApi,
    profiler_size: usize,
    library: PhantomData<&'lib Library>,
}

impl<'lib> Pjrt<'lib> {
    /// Reads the header; `None` where the library exports none, or a NULL one.
    ///
    /// # Errors
    /// When the header is too small to be one.
    pub fn of(library: &'lib Library) -> Result<Option<Self>, CallError> {
        // SAFETY: every PJRT plugin exports this name with this type.
        let Some(get) = (unsafe { library.function::<abi::GetPjrtApi>("GetPjrtApi") }) else {
            return Ok(None);
        };
        // SAFETY: it takes nothing and returns a static table.
        let api = unsafe { get() };
        if api.is_null() {
            return Ok(None);
        }
        // SAFETY: every table begins with its size.
        let api_size = unsafe { (*api).struct_size };
        if api_size < size_of::<PjrtApi>() {
            return Err(CallError::Absurd { what: "a PJRT table", size: api_size });
        }
        // SAFETY: the table is at least as large as its header.
        let (major, minor, first) =
            unsafe { ((*api).version.major, (*api).version.minor, (*api).extension_start) };
        let mut pjrt = Self {
            major,
            minor,
            api_size,
            extensions: Vec::new(),
            profiler: ptr::null(),
            profiler_size: 0,
            library: PhantomData,
        };
        pjrt.walk(first)?;
        Ok(Some(pjrt))
    }

    fn walk(&mut self, mut node: *const PjrtExtension) -> Result<(), CallError> {
        while !node.is_null() && self.extensions.len() < MAX_EXTENSIONS {
            // SAFETY: a node of the chain begins with its size, its type and its successor.
            let (size, kind, next) = unsafe { ((*node).struct_size, (*node).kind, (*node).next) };
            if size < size_of::<PjrtExtension>() {
                return Err(CallError::Absurd { what: "a PJRT extension", size });
            }
            self.extensions.push(Extension { kind, size });
            if kind == PROFILER_EXTENSION && size >= size_of::<ProfilerExtension>() && self.profiler.is_null()
            {
                // SAFETY: a node of this type and size is a profiler extension.
                self.profiler = unsafe { (*node.cast::<ProfilerExtension>()).api };
            }
            node = next;
        }
        if !self.profiler.is_null() {
            // SAFETY: the profiler table begins with its size.
            self.profiler_size = unsafe { (*self.profiler).struct_size };
        }
        Ok(())
    }

    /// Size of the profiler's table (80, or 104 with the consume functions); 0 where there is none.
    pub fn profiler_api_size(&self) -> usize {
        self.profiler_size
    }

    /// A profiler of this process, destroyed with the value. `options` is a serialised `tensorflow.ProfileOptions`.
    ///
    /// # Errors
    /// What libtpu says; [`CallError::Missing`] where it has no profiler.
    pub fn profiler(&self, options: &[u8]) -> Result<Profiler<'_>, CallError> {
        if self.profiler.is_null() || self.profiler_size < PROFILER_API_SIZE {
            return Err(CallError::Missing("PJRT profiler"));
        }
        // SAFETY: the table is static, and as large as the struct at least.
        let api = unsafe { &*self.profiler };
        let mut args = ProfilerCreateArgs {
            struct_size: size_of::<ProfilerCreateArgs>(),
            options: options.as_ptr().cast(),
            options_size: options.len(),
            profiler: ptr::null_mut(),
        };
        let create = api.create.ok_or(CallError::Missing("PLUGIN_Profiler_Create"))?;
        // SAFETY: the struct that this function takes, all of it initialised.
        check(api, unsafe { create(&raw mut args) })?;
        if args.profiler.is_null() {
            return Err(CallError::Null("profiler"));
        }
        Ok(Profiler { api, profiler: args.profiler })
    }
}

/// Turns an error of the profiler into ours and frees it.
fn check(api: &ProfilerApi, error: LibtpuPointer) -> Result<(), CallError> {
    if error.is_null() {
        return Ok(());
    }
    let mut text = ProfilerErrorMessageArgs {
        struct_size: size_of::<ProfilerErrorMessageArgs>(),
        private: ptr::null_mut(),
        error,
        message: ptr::null(),
        message_size: 0,
    };
    if let Some(get_message) = api.error_message {
        // SAFETY: the struct that this function takes, all of it initialised.
        unsafe { get_message(&raw mut text) };
    }
    // SAFETY: the message belongs to the error, which is still there.
    let message = unsafe { bounded::text("an error message", text.message, text.message_size) };
    let mut code = ProfilerErrorGetCodeArgs {
        struct_size: ERROR_GET_CODE_ARGS_SIZE,
        private: ptr::null_mut(),
        error,
        code: 0,
    };
    if let Some(get_code) = api.error_get_code {
        // SAFETY: the struct that this function takes. An error about the error is of no use.
        unsafe { get_code(&raw mut code) };
    }
    let mut end = ProfilerErrorDestroyArgs {
        struct_size: size_of::<ProfilerErrorDestroyArgs>(),
        private: ptr::null_mut(),
        error,
    };
    if let Some(destroy) = api.error_destroy {
        // SAFETY: the error is freed once, here.
        unsafe { destroy(&raw mut end) };
    }
    Err(message.map_or_else(|absurd| absurd, |message| CallError::Status { code: code.code, message }))
}

/// A profiler of this process.
#[derive(Debug)]
pub struct Profiler<'pjrt> {
    api: &'pjrt ProfilerApi,
    profiler: LibtpuPointer,
}

type Control = Option<unsafe extern "C" fn(*mut ProfilerArgs) -> LibtpuPointer>;

impl Profiler<'_> {
    fn control(&mut self, function: Control, name: &'static str) -> Result<(), CallError> {
        let function = function.ok_or(CallError::Missing(name))?;
        let mut args = ProfilerArgs { struct_size: size_of::<ProfilerArgs>(), profiler: self.profiler };
        // SAFETY: the struct that start, stop and destroy take, with a living profiler.
        check(self.api, unsafe { function(&raw mut args) })
    }

    /// Starts tracing.
    ///
    /// # Errors
    /// What libtpu says: 0.0.45 and later refuse in a process that did not initialise the plugin.
    pub fn start(&mut self) -> Result<(), CallError> {
        self.control(self.api.start, "PLUGIN_Profiler_Start")
    }

    /// Stops tracing.
    ///
    /// # Errors
    /// What libtpu says.
    pub fn stop(&mut self) -> Result<(), CallError> {
        self.control(self.api.stop, "PLUGIN_Profiler_Stop")
    }

    /// The trace, a serialised XSpace. libtpu hands it out once: a second call gives an empty one.
    ///
    /// # Errors
    /// What libtpu says, or a trace of absurd size.
    pub fn collect(&mut self) -> Result<Vec<u8>, CallError> {
        let collect = self.api.collect_data.ok_or(CallError::Missing("PLUGIN_Profiler_CollectData"))?;
        // With a buffer of ours nothing would be written and the trace lost.
        let mut args = ProfilerCollectDataArgs {
            struct_size: size_of::<ProfilerCollectDataArgs>(),
            profiler: self.profiler,
            buffer: ptr::null(),
            buffer_size: 0,
        };
        // SAFETY: the struct that this function takes, all of it initialised.
        check(self.api, unsafe { collect(&raw mut args) })?;
        // SAFETY: the buffer is libtpu's, and good until the next collect or destroy.
        let mut trace = unsafe { bounded::bytes("a trace", args.buffer, args.buffer_size) }?;
        // libtpu counts a NUL byte after the XSpace in the size; parsers take it for a damaged field.
        if trace.last() == Some(&0) {
            trace.pop();
        }
        Ok(trace)
    }
}

impl Drop for Profiler<'_> {
    fn drop(&mut self) {
        // Nothing is left to do about a profiler that does not want to go.
        let _ = self.control(self.api.destroy, "PLUGIN_Profiler_Destroy");
    }
}
