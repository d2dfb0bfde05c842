//! A server on a thread of its own: listens when it is started, ends when it is dropped.

use std::{net::SocketAddr, sync::mpsc, thread::JoinHandle};

use tokio::{net::TcpListener, runtime, sync::oneshot};

/// The thread of a server.
#[derive(Debug)]
pub struct ServerThread {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ServerThread {
    /// Runs what `serve` makes of a listener on this address.
    ///
    /// # Panics
    /// If the address is taken.
    pub fn start<F: Future<Output = ()>>(
        address: SocketAddr,
        serve: impl FnOnce(TcpListener) -> F + Send + 'static,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = TcpListener::bind(address).await.expect("a free port");
                tell.send(listener.local_addr().expect("an address")).expect("the caller waits");
                tokio::select! {
                    () = serve(listener) => {}
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        });
        let address = told.recv().expect("it binds");
        Self { address, stop: Some(stop), thread: Some(thread) }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        // The thread may have ended by itself.
        let _ = self.stop.take().map(|stop| stop.send(()));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
