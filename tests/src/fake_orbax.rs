//! The Prometheus text endpoint that Orbax and Grain open inside a workload.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// What a scrape gets.
#[derive(Debug, Clone)]
pub enum Page {
    /// This text, with status 200.
    Text(String),
    /// This status, without text.
    Status(u16),
    /// No answer.
    Hang,
    /// These bytes, raw: no HTTP at all.
    Raw(Vec<u8>),
    /// A page without end.
    Endless,
}

/// The running endpoint.
pub struct FakeOrbax {
    address: SocketAddr,
    page: Arc<Mutex<Page>>,
    scrapes: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FakeOrbax {
    /// Serves [`page`] of step 1 at `address` until it is dropped.
    ///
    /// # Panics
    /// If it cannot listen there.
    pub fn start(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).unwrap_or_else(|error| panic!("{address}: {error}"));
        let address = listener.local_addr().unwrap();
        let shown = Arc::new(Mutex::new(Page::Text(page(1))));
        let (scrapes, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (page, counted, stopped) = (shown.clone(), scrapes.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(stream), page, stopped) = (stream, page.clone(), stopped.clone()) else { continue };
                counted.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || answer(stream, &page, &stopped));
            }
        });
        Self { address, page: shown, scrapes, stop, thread: Some(thread) }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets what it shows.
    pub fn set(&self, page: Page) {
        *self.page.lock().unwrap() = page;
    }

    /// How many connections came.
    pub fn scrapes(&self) -> u64 {
        self.scrapes.load(Ordering::SeqCst)
    }
}

impl Drop for FakeOrbax {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the accepting thread.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(mut stream: TcpStream, page: &Mutex<Page>, stopped: &AtomicBool) {
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut request = Vec::new();
    let mut chunk = [0; 1024];
    while !stopped.load(Ordering::SeqCst) {
        match stream.read(&mut chunk) {
            Ok(0) => return,
            Ok(read) => request.extend_from_slice(&chunk[..read]),
            Err(_) => continue,
        }
        if !request.windows(4).any(|window| window == b"\r\n\r\n") {
            continue;
        }
        request.clear();
        let page = page.lock().unwrap().clone();
        if respond(&mut stream, page, stopped).is_err() {
            return;
        }
    }
}

fn respond(stream: &mut TcpStream, page: Page, stopped: &AtomicBool) -> std::io::Result<()> {
    match page {
        Page::Text(text) => {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8";
            write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{text}", text.len())
        }
        Page::Status(code) => write!(stream, "HTTP/1.1 {code} No\r\nContent-Length: 0\r\n\r\n"),
        Page::Hang => {
            // Whatever comes stays without an answer, until the client closes.
            let mut chunk = [0; 1024];
            while !stopped.load(Ordering::SeqCst) && !matches!(stream.read(&mut chunk), Ok(0)) {}
            Ok(())
        }
        Page::Raw(bytes) => {
            stream.write_all(&bytes)?;
            stream.shutdown(std::net::Shutdown::Both)
        }
        Page::Endless => {
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")?;
            while !stopped.load(Ordering::SeqCst) {
                stream.write_all(&b"grain_python_more 1\n".repeat(512))?;
            }
            Ok(())
        }
    }
}

/// The page of a workload that writes checkpoints; values move with `step`.
pub fn page(step: u32) -> String {
    format!(
        "# HELP jax_orbax_write_gbytes size\n\
         # TYPE jax_orbax_write_gbytes gauge\n\
         jax_orbax_write_gbytes 1.5\n\
         # TYPE jax_orbax_write_gbytes_per_sec gauge\n\
         jax_orbax_write_gbytes_per_sec 2.5\n\
         # TYPE jax_checkpoint_write_async_blocking_duration_secs gauge\n\
         jax_checkpoint_write_async_blocking_duration_secs 0.25\n\
         # TYPE jax_checkpoint_write_async_total_duration_secs gauge\n\
         jax_checkpoint_write_async_total_duration_secs 12.0\n\
         # TYPE jax_orbax_read_total_duration_secs gauge\n\
         jax_orbax_read_total_duration_secs 10.0\n\
         # TYPE jax_orbax_read_blocking_duration_secs gauge\n\
         jax_orbax_read_blocking_duration_secs 11.0\n\
         # TYPE jax_orbax_write_async_start gauge\n\
         jax_orbax_write_async_start 8\n\
         # TYPE jax_orbax_read_async_start gauge\n\
         jax_orbax_read_async_start 7\n\
         # TYPE grain_python_data_sources_bytes_read gauge\n\
         grain_python_data_sources_bytes_read {bytes}\n\
         # TYPE grain_python_dataset_source_read_time_ns gauge\n\
         grain_python_dataset_source_read_time_ns 4000\n\
         # TYPE grain_python_dataset_next_duration_ns gauge\n\
         grain_python_dataset_next_duration_ns 3000\n\
         # TYPE grain_python_dataset_prefetch_buffer_ready_count gauge\n\
         grain_python_dataset_prefetch_buffer_ready_count 5\n\
         # TYPE grain_python_data_loader_iterator_get_next gauge\n\
         grain_python_data_loader_iterator_get_next 6\n\
         # TYPE process_cpu_seconds_total counter\n\
         process_cpu_seconds_total 12.5\n",
        bytes = 100 * step,
    )
}
