//! A process that holds chips and listens: it counts the connections and bytes that reach its listeners, and tells
//! them for each line on its standard input. Ends when that closes, so that it never outlives a test.
//!
//! `fake-workload [--hold PATH]… [--listen ADDRESS]… [--reuse-port] [--child WORDS…]`; `--child` starts another one
//! as its child with the words after it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a fake fails loudly")]
#![forbid(unsafe_code)]

use std::{
    env,
    fs::File,
    io::{Read, Write, stdin, stdout},
    net::{SocketAddr, TcpListener},
    os::fd::AsRawFd,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket, sockopt,
};

#[derive(Default)]
struct Counts {
    connections: AtomicU64,
    bytes: AtomicU64,
}

fn listener(address: SocketAddr, reuse_port: bool) -> TcpListener {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    setsockopt(&socket, sockopt::ReuseAddr, &true).unwrap();
    setsockopt(&socket, sockopt::ReusePort, &reuse_port).unwrap();
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address)).unwrap();
    listen(&socket, Backlog::new(64).unwrap()).unwrap();
    socket.into()
}

fn count(listener: &TcpListener, counts: &Counts) {
    for stream in listener.incoming() {
        counts.connections.fetch_add(1, Ordering::SeqCst);
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = stream.as_ref().map_or(Ok(0), |mut stream| stream.read(&mut buffer)) {
            counts.bytes.fetch_add(read as u64, Ordering::SeqCst);
        }
    }
}

fn main() {
    let mut words = env::args().skip(1);
    let (mut held, mut addresses, mut reuse_port, mut child) = (Vec::new(), Vec::new(), false, None);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--hold" => held.push(File::open(words.next().unwrap()).unwrap()),
            "--listen" => addresses.push(words.next().unwrap().parse::<SocketAddr>().unwrap()),
            "--reuse-port" => reuse_port = true,
            "--child" => {
                let mut command = Command::new(env::current_exe().unwrap());
                // The child's standard input is a pipe of ours: it ends with us.
                command.args(words.by_ref()).stdin(Stdio::piped()).stdout(Stdio::null());
                child = Some(command.spawn().unwrap());
            }
            _ => panic!("unknown word {word}"),
        }
    }
    let counts = Arc::new(Counts::default());
    let mut ports = Vec::new();
    for address in addresses {
        let listener = listener(address, reuse_port);
        ports.push(listener.local_addr().unwrap().port());
        let counts = Arc::clone(&counts);
        thread::spawn(move || count(&listener, &counts));
    }
    let child_pid = child.as_ref().map(std::process::Child::id);
    println!("{}", serde_json::json!({ "ports": ports, "child": child_pid }));
    for line in stdin().lines() {
        if line.is_err() {
            break;
        }
        let (connections, bytes) =
            (counts.connections.load(Ordering::SeqCst), counts.bytes.load(Ordering::SeqCst));
        println!("{}", serde_json::json!({ "connections": connections, "bytes": bytes }));
        stdout().flush().unwrap();
    }
    if let Some(mut child) = child {
        drop(child.stdin.take());
        child.wait().unwrap();
    }
    drop(held);
}
