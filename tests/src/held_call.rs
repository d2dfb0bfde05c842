//! A socket between a caller and an agent that passes every call on, and holds one of them: a test can stop a conversation at
//! any call of it.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, mpsc},
    thread,
};

use hyper::{Request, body::Incoming, client, server, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{oneshot, watch},
};

use crate::wait::LIMIT;

/// The socket, gone when dropped.
#[derive(Debug)]
pub struct HeldCall {
    held: mpsc::Receiver<()>,
    release: watch::Sender<bool>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// What all connections share.
struct CallRule {
    /// The path of the held call, such as `/tpuscope.v1.Host/Clock`.
    method: String,
    /// How many calls of it are let through before.
    passed: Mutex<usize>,
    held: mpsc::Sender<()>,
    released: watch::Receiver<bool>,
}

impl HeldCall {
    /// Listens on `socket` for callers of the agent at `agent`, and holds the `number`-th call (from 1) of a method, such as
    /// `Host/Clock`.
    ///
    /// # Panics
    /// If the socket cannot be bound.
    pub fn start(socket: &Path, agent: &Path, method: &str, number: usize) -> Self {
        let (tell, held) = mpsc::channel();
        let (release, released) = watch::channel(false);
        let (stop, stopped) = oneshot::channel();
        let (bound, is_bound) = mpsc::channel();
        let method = format!("/tpuscope.v1.{method}");
        let rule = Arc::new(CallRule { method, passed: Mutex::new(number - 1), held: tell, released });
        let (socket, agent) = (socket.to_owned(), agent.to_owned());
        let thread = thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = UnixListener::bind(socket).expect("a free path");
                bound.send(()).expect("the test waits");
                tokio::select! {
                    () = accept(listener, agent, rule) => {}
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        });
        is_bound.recv().expect("it binds");
        Self { held, release, stop: Some(stop), thread: Some(thread) }
    }

    /// Waits until the call is held.
    ///
    /// # Panics
    /// If it does not come.
    pub fn wait(&self) {
        self.held.recv_timeout(LIMIT).expect("the call comes");
    }

    /// Lets the call through.
    pub fn release(&self) {
        self.release.send_replace(true);
    }
}

impl Drop for HeldCall {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: UnixListener, agent: PathBuf, rule: Arc<CallRule>) {
    loop {
        let (caller, _) = listener.accept().await.expect("a caller");
        tokio::spawn(carry(caller, agent.clone(), Arc::clone(&rule)));
    }
}

/// Until either side ends; then the other connection ends too.
async fn carry(caller: UnixStream, agent: PathBuf, rule: Arc<CallRule>) {
    let Ok(agent) = UnixStream::connect(agent).await else { return };
    let shaken = client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(agent)).await;
    let Ok((calls, connection)) = shaken else { return };
    let service = service_fn(move |call: Request<Incoming>| {
        let (mut calls, rule) = (calls.clone(), Arc::clone(&rule));
        async move {
            rule.pass(call.uri().path()).await;
            calls.send_request(call).await
        }
    });
    let served = server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(caller), service);
    tokio::select! {
        _ = served => {}
        _ = connection => {}
    }
}

impl CallRule {
    /// Returns at once, but for the held call.
    async fn pass(&self, path: &str) {
        if path != self.method {
            return;
        }
        let held = {
            let mut passed = self.passed.lock().expect("no holder panics");
            let held = *passed == 0;
            *passed = passed.saturating_sub(1);
            held
        };
        if held {
            // The test may have ended.
            let _ = self.held.send(());
            let _ = self.released.clone().wait_for(|released| *released).await;
        }
    }
}
