//! A TCP connection to a host by its name: all its addresses are tried, one after the other.
//!
//! Must never let an address that does not answer use up the time of the others.

use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    thread,
};

use model::untrusted::{MESSAGE, clean};
use tokio::{
    net::TcpStream,
    sync::oneshot,
    time::{Instant, timeout, timeout_at},
};

use super::fault::{DialError, DialFault};

/// The most addresses of a name that are tried.
const MOST_ADDRESSES: usize = 16;

/// A connection to `port` of the host `name`.
///
/// # Errors
/// If the name has no address, or none of them accepts the connection before `deadline`.
pub async fn connect(name: &str, port: u16, deadline: Instant) -> Result<TcpStream, DialError> {
    let found = match timeout_at(deadline, resolve(name, port)).await {
        Ok(found) => found,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the name server does not answer")),
    };
    let addresses = match found {
        Ok(addresses) if !addresses.is_empty() => addresses,
        Ok(_) => return Err(error(DialFault::UnknownName, "the name has no address".to_owned())),
        Err(cause) => {
            return Err(error(DialFault::UnknownName, format!("the name cannot be resolved: {cause}")));
        }
    };
    let mut last = None;
    for (tried, address) in addresses.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let share = left / u32::try_from(addresses.len() - tried).unwrap_or(1);
        match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // A small message must not wait for the acknowledgement of the one before.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(cause)) => last = Some(format!("cannot connect to {address}: {cause}")),
            Err(_) => last = Some(format!("cannot connect to {address}: no answer within {share:.1?}")),
        }
    }
    Err(error(DialFault::NoConnection, last.unwrap_or_default()))
}

/// The addresses of a name. The look-up runs on a thread of its own: it may hang, and the end of this process must not wait
/// for it.
async fn resolve(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let (tell, told) = oneshot::channel();
    let target = (name.to_owned(), port);
    let look_up = move || {
        let found = target.to_socket_addrs().map(|found| found.take(MOST_ADDRESSES).collect());
        // Nobody may wait any longer.
        let _ = tell.send(found);
    };
    thread::Builder::new().name("resolve".to_owned()).spawn(look_up)?;
    told.await.unwrap_or_else(|_| Err(io::Error::other("the look-up ended without a result")))
}

fn error(fault: DialFault, reason: String) -> DialError {
    DialError { fault, reason: clean(&reason, MESSAGE) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn the_next_address_is_tried() {
        // The name has 127.0.0.1, and often ::1 too; one of them listens.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let deadline = Instant::now() + Duration::from_secs(60);
        assert!(connect("localhost", port, deadline).await.is_ok());
        drop(listener);
        let refused = connect("127.0.0.1", port, deadline).await.unwrap_err();
        assert_eq!(refused.fault, DialFault::NoConnection);
        assert!(refused.reason.contains("Connection refused"), "{}", refused.reason);
        let unknown = connect("no-such-host.invalid", port, deadline).await.unwrap_err();
        assert_eq!(unknown.fault, DialFault::UnknownName);
    }
}
