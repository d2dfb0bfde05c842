//! A network between two ends of this machine: bytes arrive later than they were sent, by a delay of their direction and some
//! jitter, and in their order.
//!
//! One thread keeps the times: the timers of an event loop are too coarse for delays below a millisecond.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    io,
    sync::{Arc, Condvar, Mutex},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
};

/// The most bytes that are read at a time.
const CHUNK: usize = 64 << 10;

/// A way between two hosts.
#[derive(Debug, Clone, Copy)]
pub struct NetworkPath {
    /// The delay of what the client sends.
    pub there: Duration,
    /// The delay of what the host sends.
    pub back: Duration,
    /// Each piece is later by a random time up to this.
    pub jitter: Duration,
}

/// A piece on its way; the first one due is the greatest.
type Piece = (Reverse<(Instant, u64)>, Bytes, mpsc::UnboundedSender<Bytes>);

#[derive(Debug, Default)]
struct Pending {
    pieces: BinaryHeap<QueuedPiece>,
    sequence: u64,
    over: bool,
}

#[derive(Debug)]
struct QueuedPiece(Piece);

impl PartialEq for QueuedPiece {
    fn eq(&self, other: &Self) -> bool {
        self.0.0 == other.0.0
    }
}

impl Eq for QueuedPiece {}

impl PartialOrd for QueuedPiece {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for QueuedPiece {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.0.cmp(&other.0.0)
    }
}

/// Keeps pieces until they are due. Clones are the same; the thread ends with [`stop`](Self::stop).
#[derive(Debug, Clone, Default)]
pub struct DelayLine(Arc<(Mutex<Pending>, Condvar)>);

impl DelayLine {
    /// Starts its thread.
    pub fn start() -> Self {
        let line = Self::default();
        let running = line.clone();
        thread::spawn(move || running.deliver());
        line
    }

    /// Ends its thread; what is on its way is lost.
    pub fn stop(&self) {
        self.0.0.lock().unwrap().over = true;
        self.0.1.notify_one();
    }

    fn send(&self, due: Instant, bytes: Bytes, to: mpsc::UnboundedSender<Bytes>) {
        let mut pending = self.0.0.lock().unwrap();
        pending.sequence += 1;
        let sequence = pending.sequence;
        pending.pieces.push(QueuedPiece((Reverse((due, sequence)), bytes, to)));
        drop(pending);
        self.0.1.notify_one();
    }

    fn deliver(&self) {
        let (pending, changed) = &*self.0;
        let mut pending = pending.lock().unwrap();
        while !pending.over {
            let now = Instant::now();
            let due = pending.pieces.peek().map(|QueuedPiece((Reverse((due, _)), ..))| *due);
            pending = match due {
                Some(due) if due <= now => {
                    if let Some(QueuedPiece((_, bytes, to))) = pending.pieces.pop() {
                        // The connection may be over.
                        let _ = to.send(bytes);
                    }
                    pending
                }
                Some(due) => changed.wait_timeout(pending, due - now).unwrap().0,
                None => changed.wait(pending).unwrap(),
            };
        }
    }

    /// Carries bytes between a client and its host until one side ends.
    pub async fn connect<S>(&self, client: TcpStream, host: S, path: NetworkPath)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        // Small pieces are not to wait for acknowledgements: the delays are ours.
        let _ = client.set_nodelay(true);
        let ((from_client, to_client), (from_host, to_host)) =
            (tokio::io::split(client), tokio::io::split(host));
        let there = self.carry(from_client, to_host, path.there, path.jitter);
        let back = self.carry(from_host, to_client, path.back, path.jitter);
        // Either end is the end of both, as with a connection that is reset.
        tokio::select! {
            _ = there => {}
            _ = back => {}
        }
    }

    async fn carry(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        delay: Duration,
        jitter: Duration,
    ) -> io::Result<()> {
        let (send, mut arrived) = mpsc::unbounded_channel::<Bytes>();
        let mut last = Instant::now();
        let mut ended = false;
        let mut chunk = vec![0; CHUNK];
        loop {
            tokio::select! {
                read = from.read(&mut chunk), if !ended => {
                    let read = read?;
                    let random = jitter.mul_f64(fastrand::f64());
                    last = last.max(Instant::now() + delay + random);
                    // No bytes are the end, which comes last.
                    self.send(last, Bytes::copy_from_slice(&chunk[..read]), send.clone());
                    ended = read == 0;
                }
                bytes = arrived.recv() => match bytes {
                    Some(bytes) if !bytes.is_empty() => {
                        to.write_all(&bytes).await?;
                        to.flush().await?;
                    }
                    _ => return to.shutdown().await,
                },
            }
        }
    }
}
