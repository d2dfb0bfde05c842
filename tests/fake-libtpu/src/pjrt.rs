//! `GetPjrtApi`: header, chain of extensions, and the profiler extension at its end.

use std::{
    ffi::c_int,
    ptr,
    sync::{Mutex, OnceLock},
};

use crate::{
    abi::{Args, ERRORS, Error, Live, ObjectPointer, error, fine, get, put},
    behavior::Behavior,
    settings,
};

/// Types and sizes of libtpu 0.0.52.
const CHAIN: [(c_int, usize); 18] = [
    (5, 48),
    (24, 56),
    (23, 32),
    (22, 64),
    (21, 96),
    (20, 120),
    (19, 40),
    (18, 248),
    (17, 96),
    (16, 280),
    (14, 40),
    (9, 192),
    (12, 56),
    (13, 40),
    (6, 40),
    (4, 80),
    (8, 80),
    (1, 40),
];
/// Size of the whole table of 0.0.52.
const API_SIZE: usize = 1144;

type Function = unsafe extern "C" fn(Args) -> ObjectPointer;

/// The static table, as in 0.0.52.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn GetPjrtApi() -> *const usize {
    static TABLE: OnceLock<usize> = OnceLock::new();
    if let Some(behavior) = settings::get("pjrt_call") {
        Behavior::parse(&behavior).act();
    }
    if settings::get("pjrt").as_deref() == Some("none") {
        return ptr::null();
    }
    *TABLE.get_or_init(|| {
        let mut table = vec![0_usize; API_SIZE / 8];
        table[0] = API_SIZE;
        table[1] = extensions();
        // The version: its own size, no extension, 0.117 in two int32.
        (table[2], table[3], table[4]) = (24, 0, 117_usize << 32);
        // Whoever calls one of these has no business here.
        table[5..].fill(never_called as *const () as usize);
        table.leak().as_ptr() as usize
    }) as *const usize
}

unsafe extern "C" fn never_called(_args: Args) -> ObjectPointer {
    std::process::abort()
}

/// The chain's first node.
fn extensions() -> usize {
    let odd = settings::get("chain");
    let mut next = 0;
    let mut last: &mut [usize] = &mut [];
    for (kind, size) in CHAIN.iter().rev() {
        let node = vec![0_usize; size.div_ceil(8)].leak();
        node[0] = if odd.as_deref() == Some("tiny") { 3 } else { *size };
        // An int32; what follows it is padding, and left as it was.
        node[1] = 0xc5c5_c5c5_0000_0000 | usize::try_from(*kind).unwrap_or(0);
        node[2] = next;
        if *kind == 1 {
            node[3] = profiler_api();
        }
        next = node.as_ptr() as usize;
        if last.is_empty() {
            last = node;
        }
    }
    if odd.as_deref() == Some("endless") {
        last[2] = next;
    }
    next
}

fn profiler_api() -> usize {
    let size = settings::get("pjrt").and_then(|text| text.parse().ok()).unwrap_or(104);
    let all: [Function; 11] = [
        error_destroy,
        error_message,
        error_get_code,
        create,
        destroy,
        start,
        stop,
        collect_data,
        never_called,
        never_called,
        never_called,
    ];
    let mut table = vec![size, 0];
    table.extend(all.map(|function| function as usize));
    table.truncate(size.div_ceil(8).max(2));
    table.leak().as_ptr() as usize
}

#[derive(Default)]
struct Profiler {
    running: bool,
    /// What collect hands out once.
    trace: Option<Vec<u8>>,
    handed: Vec<u8>,
}

static PROFILERS: Live = Live::new();
/// What the last profiler was created with.
static OPTIONS: Mutex<Vec<u8>> = Mutex::new(Vec::new());

unsafe extern "C" fn error_destroy(args: Args) -> ObjectPointer {
    // SAFETY: the measured layout, and the caller frees an error once.
    unsafe { ERRORS.free::<Error>(get(args, 0x10)) };
    fine()
}

unsafe extern "C" fn error_message(args: Args) -> ObjectPointer {
    // SAFETY: the measured layout: private, error, then text and size out.
    unsafe {
        if let Some(error) = get::<*const Error>(args, 0x10).as_ref() {
            put(args, 0x18, error.message.as_ptr());
            put(args, 0x20, error.message.as_bytes().len());
        }
    }
    fine()
}

unsafe extern "C" fn error_get_code(args: Args) -> ObjectPointer {
    // SAFETY: the measured layout.
    unsafe {
        if let Some(error) = get::<*const Error>(args, 0x10).as_ref() {
            put(args, 0x18, error.code);
        }
    }
    fine()
}

unsafe extern "C" fn create(args: Args) -> ObjectPointer {
    // SAFETY: the measured layout: options and their size, profiler out.
    unsafe {
        let (options, size): (*const u8, usize) = (get(args, 8), get(args, 0x10));
        if let (false, Ok(mut seen)) = (options.is_null(), OPTIONS.lock()) {
            *seen = std::slice::from_raw_parts(options, size).to_vec();
        }
        put(args, 0x18, PROFILERS.make(Profiler::default()));
    }
    fine()
}

unsafe extern "C" fn destroy(args: Args) -> ObjectPointer {
    // SAFETY: the measured layout, and the caller destroys a profiler once.
    unsafe { PROFILERS.free::<Profiler>(get(args, 8)) };
    fine()
}

/// The profiler of `args`.
unsafe fn profiler<'a>(args: Args) -> Option<&'a mut Profiler> {
    // SAFETY: the measured layout.
    unsafe { get::<*mut Profiler>(args, 8).as_mut() }
}

unsafe extern "C" fn start(args: Args) -> ObjectPointer {
    if settings::get("start").as_deref() == Some("refused") {
        return error(12, "No factory for ACTIVITY_TRACING on JELLYFISH");
    }
    // SAFETY: as the function says.
    if let Some(profiler) = unsafe { profiler(args) } {
        profiler.running = true;
    }
    fine()
}

unsafe extern "C" fn stop(args: Args) -> ObjectPointer {
    // SAFETY: as the function says.
    if let Some(profiler) = unsafe { profiler(args) }
        && std::mem::take(&mut profiler.running)
    {
        profiler.trace = Some(trace());
    }
    fine()
}

/// A serialised XSpace: one warning (field 3) with the options of the profiler in hexadecimal, and one host name
/// (field 4).
fn trace() -> Vec<u8> {
    let options = OPTIONS.lock().map(|options| options.clone()).unwrap_or_default();
    let warning: String = options.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut bytes = vec![0x1a, u8::try_from(warning.len().min(127)).unwrap_or(0)];
    bytes.extend(warning.bytes().take(127));
    bytes.extend(b"\x22\x09fake-host");
    bytes
}

unsafe extern "C" fn collect_data(args: Args) -> ObjectPointer {
    // SAFETY: the measured layout: profiler, buffer in and out, size out.
    unsafe {
        let Some(profiler) = profiler(args) else { return error(3, "no profiler") };
        let trace = profiler.trace.take().unwrap_or_default();
        // With a buffer of the caller's nothing is written, and the trace is lost.
        if !get::<*const u8>(args, 0x10).is_null() {
            return fine();
        }
        profiler.handed = trace;
        profiler.handed.push(0);
        put(args, 0x10, profiler.handed.as_ptr());
        put(args, 0x18, profiler.handed.len());
    }
    fine()
}
