//! `GetLibtpuSdkApi`: the table and its functions.

use std::{
    ffi::{CStr, CString, c_char},
    ptr,
    sync::OnceLock,
};

use crate::{
    abi::{Args, ERRORS, Error, Live, ObjectPointer, error, fine, get, put, text},
    behavior::Behavior,
    settings,
};

const ALIVE: u64 = 0x6c69_7665_6669_6e65;

struct Client {
    mark: u64,
    /// Handles of its metrics: they go with it.
    metrics: Vec<ObjectPointer>,
}

struct Metric {
    description: CString,
    claimed_description: Option<usize>,
    values: Vec<CString>,
    claimed_count: Option<usize>,
    /// What the last call handed out: the next one hands out another array.
    array: Vec<*const c_char>,
}

struct Status {
    bytes: Vec<u8>,
}

static CLIENTS: Live = Live::new();
static METRICS: Live = Live::new();
static STATUSES: Live = Live::new();

/// The metrics that the SDK knows, with their values.
const NAMES: &[(&str, &str)] = &[
    ("tensorcore_util", "10.50|20.25|30.00|40.75"),
    ("hbm_util", "30.25|31.25|32.25|33.25"),
    ("ici_link_health", "tray1.chip0.ici0.int: 0|tray1.chip0.ici1.int: 5"),
    ("tpu_throttle_score", "1-0: 0|1-1: 3"),
    ("duty_cycle_pct", "20.57|21.57|22.57|23.57"),
    ("hbm_capacity_total", "33550229504|33550229504|33550229504|33550229504"),
    ("hbm_capacity_usage", "1000|2000|3000|4000"),
    ("runtime_hbm_utilization", "50.00|51.00|52.00|53.00"),
    ("idle_duration", "3.14|0.00|0.00|0.00"),
    ("hlo_queue_size", "0-tensorcore: 7|1-tensorcore: 0"),
    ("hlo_execution_timing", "0-tensorcore, 123.46, 12.00, 90.00, 95.00, 99.90"),
    ("buffer_transfer_latency", "8MB+-AllReduce, 100.00, 10.00, 90.00, 95.00, 99.90"),
    ("inbound_buffer_transfer_latency", "8MB+, 100.00, 10.00, 90.00, 95.00, 99.90"),
    ("collective_e2e_latency", "2MB+-ALL_REDUCE, 100.00, 10.00, 90.00, 95.00, 99.90"),
    ("host_to_device_transfer_latency", "8MB+, 100.00, 10.00, 90.00, 95.00, 99.90"),
    ("device_to_host_transfer_latency", "8MB+, 100.00, 10.00, 90.00, 95.00, 99.90"),
    ("host_compute_latency", "8MB+, 100.00, 10.00, 90.00, 95.00, 99.90"),
    ("tcp_min_rtt", "100.00, 10.00, 90.00, 95.00, 99.90"),
    ("tcp_delivery_rate", "12.40, 12.00, 13.00, 14.00, 15.00"),
    ("orbax_write_size", "1.50"),
    ("orbax_write_throughput", "2.50"),
    ("checkpoint_write_async_blocking_duration", "13.00"),
    ("checkpoint_write_async_total_duration", "12.00"),
    ("orbax_read_total_duration", "10.00"),
    ("orbax_read_blocking_duration", "11.00"),
    ("orbax_write_async_start_count", "8"),
    ("orbax_read_async_start_count", "7"),
    ("pygrain_data_sources_read_size", "100.00"),
    ("pygrain_dataset_source_read_duration", "4.00"),
    ("pygrain_dataset_next_duration", "3.00"),
    ("pygrain_dataset_prefetch_buffer_ready_count", "5"),
    ("pygrain_dataloader_iterator_get_next_duration", "6"),
];

/// The table: on the heap, never freed, the same at each call.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn GetLibtpuSdkApi() -> *const usize {
    static TABLE: OnceLock<usize> = OnceLock::new();
    if let Some(behavior) = settings::get("sdk") {
        Behavior::parse(&behavior).act();
    }
    *TABLE.get_or_init(|| {
        let number = |key, default| settings::get(key).and_then(|text| text.parse().ok()).unwrap_or(default);
        let (slots, stray): (usize, usize) = (number("slots", 17), number("stray", 0));
        // Major 0, minor 1, in two u32.
        let mut table = vec![1_usize << 32];
        table.extend(&functions()[..slots.min(17)]);
        table.extend(std::iter::repeat_n(never_called as *const () as usize, stray));
        // What else lies on the heap.
        table.extend([0xdead_beef, table.as_ptr() as usize, 0]);
        table.leak().as_ptr() as usize
    }) as *const usize
}

fn functions() -> [usize; 17] {
    type Function = unsafe extern "C" fn(Args) -> ObjectPointer;
    let all: [Function; 17] = [
        error_get_message,
        error_destroy,
        error_get_code,
        client_create,
        client_destroy,
        no_coordinates,
        no_coordinates,
        no_coordinates,
        no_coordinates,
        get_metric,
        get_metric_description,
        get_metric_values,
        get_runtime_status,
        get_core_state_summary,
        runtime_status_destroy,
        never_called,
        never_called,
    ];
    all.map(|function| function as usize)
}

/// What the return register holds after a function that returns nothing.
fn left_over() -> ObjectPointer {
    ptr::without_provenance_mut(0xc5c5_c5c5_c5c5_c5c5)
}

unsafe extern "C" fn error_get_message(args: Args) -> ObjectPointer {
    // SAFETY: the measured layout: error, then message and size.
    unsafe {
        let error = get::<*const Error>(args, 0).as_ref();
        put(args, 0x08, error.map_or(ptr::null(), |error| error.message.as_ptr()));
        put(args, 0x10, error.map_or(0, |error| error.message.as_bytes().len()));
    }
    left_over()
}

unsafe extern "C" fn error_destroy(args: Args) -> ObjectPointer {
    // SAFETY: the measured layout, and the caller frees an error once.
    unsafe { ERRORS.free::<Error>(get(args, 0)) };
    left_over()
}

unsafe extern "C" fn error_get_code(args: Args) -> ObjectPointer {
    // SAFETY: the measured layout: four bytes are written, no more.
    unsafe {
        if let Some(error) = get::<*const Error>(args, 0).as_ref() {
            put(args, 8, error.code);
        }
    }
    fine()
}

unsafe extern "C" fn client_create(args: Args) -> ObjectPointer {
    let client = CLIENTS.make(Client { mark: ALIVE, metrics: Vec::new() });
    // SAFETY: the measured layout.
    unsafe { put(args, 0, client) };
    fine()
}

/// The client of `args`; NULL stays `None`, and one that is no more aborts.
unsafe fn client<'a>(args: Args) -> Option<&'a mut Client> {
    // SAFETY: the measured layout; the mark tells a living client.
    let client = unsafe { get::<*mut Client>(args, 0).as_mut() }?;
    if client.mark != ALIVE {
        std::process::abort();
    }
    Some(client)
}

unsafe extern "C" fn client_destroy(args: Args) -> ObjectPointer {
    // SAFETY: the measured layout. The client's memory is kept, so that a second destroy is noticed.
    if let Some(client) = unsafe { client(args) } {
        client.mark = 0;
        for metric in client.metrics.drain(..) {
            // SAFETY: made by `get_metric`, and taken off the list.
            unsafe { METRICS.free::<Metric>(metric) };
        }
        CLIENTS.forget();
    }
    fine()
}

unsafe extern "C" fn no_coordinates(_args: Args) -> ObjectPointer {
    error(3, "worker addresses cannot be empty")
}

unsafe extern "C" fn never_called(_args: Args) -> ObjectPointer {
    std::process::abort()
}

fn live() -> Vec<String> {
    let counts = [("errors", &ERRORS), ("clients", &CLIENTS), ("metrics", &METRICS), ("statuses", &STATUSES)];
    counts.map(|(name, live)| format!("{name} {}", live.count())).to_vec()
}

fn behavior(name: &str) -> Option<Behavior> {
    if name == "live" {
        return Some(Behavior::Values(live()));
    }
    if let Some(text) = settings::get(name) {
        return Some(Behavior::parse(&text));
    }
    let (_, values) = NAMES.iter().find(|(known, _)| *known == name)?;
    Some(Behavior::parse(&format!("values {values}")))
}

unsafe extern "C" fn get_metric(args: Args) -> ObjectPointer {
    // SAFETY: the measured layout: client, name, metric out.
    let (client, name) = unsafe { (client(args), get::<*const c_char>(args, 8)) };
    let Some(client) = client else { return error(3, "sdk_client is null") };
    // SAFETY: the name is NULL or ends with a NUL byte.
    let name = if name.is_null() { "".into() } else { unsafe { CStr::from_ptr(name) }.to_string_lossy() };
    let behavior = match behavior(&name) {
        Some(behavior) => behavior,
        None if settings::get("unknown").as_deref() == Some("abort") => Behavior::Abort,
        None => Behavior::Values(Vec::new()),
    };
    if let Behavior::Error(code, message) = &behavior {
        return error(*code, message);
    }
    let mut metric = Metric {
        description: text(&format!("The metric {name}, as the stand-in has it.")),
        claimed_description: None,
        values: behavior.act().iter().map(|value| text(value)).collect(),
        claimed_count: None,
        array: Vec::new(),
    };
    match behavior {
        Behavior::Count(count) => metric.claimed_count = Some(count),
        Behavior::Length(length) => metric.claimed_description = Some(length),
        Behavior::Endless => metric.values = vec![text(&"x".repeat(1 << 20))],
        _ => {}
    }
    let nothing = behavior == Behavior::Nothing;
    let handle = METRICS.make(metric);
    client.metrics.push(handle);
    // SAFETY: the measured layout.
    unsafe { put(args, 0x10, if nothing { fine() } else { handle }) };
    fine()
}

unsafe extern "C" fn get_metric_description(args: Args) -> ObjectPointer {
    // SAFETY: the measured layout: metric, then text and size out.
    unsafe {
        if let Some(metric) = get::<*const Metric>(args, 0).as_ref() {
            put(args, 8, metric.description.as_ptr());
            put(args, 0x10, metric.claimed_description.unwrap_or(metric.description.as_bytes().len()));
        }
    }
    fine()
}

unsafe extern "C" fn get_metric_values(args: Args) -> ObjectPointer {
    // SAFETY: the measured layout: metric, then array and count out.
    unsafe {
        if let Some(metric) = get::<*mut Metric>(args, 0).as_mut() {
            metric.array = metric.values.iter().map(|value| value.as_ptr()).collect();
            put(args, 8, metric.array.as_ptr());
            put(args, 0x10, metric.claimed_count.unwrap_or(metric.array.len()));
        }
    }
    fine()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .bytes()
        .filter_map(|c| (c as char).to_digit(16))
        .filter_map(|digit| u8::try_from(digit).ok())
        .collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

unsafe extern "C" fn get_runtime_status(args: Args) -> ObjectPointer {
    // SAFETY: the measured layout: client, one byte, status out.
    unsafe {
        let _ = client(args);
        if get::<u8>(args, 8) > 1 {
            std::process::abort();
        }
        let Some(bytes) = settings::get("status") else {
            return error(14, "failed to connect to all addresses");
        };
        put(args, 0x10, STATUSES.make(Status { bytes: unhex(&bytes) }));
    }
    fine()
}

unsafe extern "C" fn get_core_state_summary(args: Args) -> ObjectPointer {
    let claimed = settings::get("status_size").and_then(|text| text.parse().ok());
    // SAFETY: the measured layout: status, then bytes and size out.
    unsafe {
        if let Some(status) = get::<*const Status>(args, 0).as_ref() {
            put(args, 8, status.bytes.as_ptr());
            put(args, 0x10, claimed.unwrap_or(status.bytes.len()));
        }
    }
    fine()
}

unsafe extern "C" fn runtime_status_destroy(args: Args) -> ObjectPointer {
    // SAFETY: the measured layout, and the caller destroys a status once.
    unsafe { STATUSES.free::<Status>(get(args, 0)) };
    fine()
}
