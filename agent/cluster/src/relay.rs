//! The far end of a dialled command: carries bytes between standard input and output and the agent's socket.
//!
//! It begins with [`MAGIC`], because shells and log-in messages write to standard output too. It ends when the caller is
//! gone, also while it waits to write; and when the agent is gone, also while nobody reads.
//!
//! Must never write anything else to standard output.

use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::{Errno, read, write},
};

/// The first bytes of the far end. What comes before them is not its own.
pub const MAGIC: &[u8] = b"tpuscope-dial-stdio/1\n";
/// What the line begins with in every version of the relay; the version follows.
pub const MAGIC_NAME: &[u8] = b"tpuscope-dial-stdio/";

/// The time that the caller has to read the last bytes of an agent that is gone.
pub const LINGER: Duration = Duration::from_secs(2);

const BUFFER: usize = 64 << 10;

/// Why a relay ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelayEnd {
    /// The caller closed standard input or output.
    Caller,
    /// The agent closed the connection.
    Agent,
}

/// Bytes on their way in one direction.
struct Flow {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Flow {
    fn new(first: &[u8]) -> Self {
        let mut bytes = vec![0; BUFFER].into_boxed_slice();
        bytes[..first.len()].copy_from_slice(first);
        Self { bytes, start: 0, end: first.len() }
    }

    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    fn has_room(&self) -> bool {
        self.end < self.bytes.len()
    }

    /// Takes in what is there. `false` at the end.
    fn fill(&mut self, from: BorrowedFd<'_>) -> Result<bool, Errno> {
        match read(from, &mut self.bytes[self.end..]) {
            Ok(0) => Ok(false),
            Ok(read) => {
                self.end += read;
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Gives out what can be written at once.
    fn drain(&mut self, to: BorrowedFd<'_>) -> Result<(), Errno> {
        match write(to, &self.bytes[self.start..self.end]) {
            Ok(written) => self.start += written,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
        }
        Ok(())
    }
}

/// A descriptor that does not block; as it was before when dropped. The caller may share it with other programs.
struct NonBlocking<'a> {
    fd: BorrowedFd<'a>,
    before: OFlags,
}

impl<'a> NonBlocking<'a> {
    fn new(fd: BorrowedFd<'a>) -> Result<Self, Errno> {
        let before = fcntl_getfl(fd)?;
        fcntl_setfl(fd, before | OFlags::NONBLOCK)?;
        Ok(Self { fd, before })
    }
}

impl Drop for NonBlocking<'_> {
    fn drop(&mut self) {
        // There is nothing else to do about it.
        let _ = fcntl_setfl(self.fd, self.before);
    }
}

/// Carries bytes until one side is gone. An agent that is gone leaves its last bytes `linger` to be read.
///
/// # Errors
/// If the system does not watch a descriptor.
pub fn relay(
    agent: &UnixStream,
    stdin: BorrowedFd<'_>,
    stdout: BorrowedFd<'_>,
    linger: Duration,
) -> io::Result<RelayEnd> {
    agent.set_nonblocking(true)?;
    let _restored = NonBlocking::new(stdout)?;
    let linger = Timespec::try_from(linger).map_err(io::Error::other)?;
    let agent = agent.as_fd();
    let (mut to_agent, mut to_caller) = (Flow::new(&[]), Flow::new(MAGIC));
    // One that hung up may have sent bytes that are not read yet; one that ended has not.
    let (mut agent_hung_up, mut agent_ended) = (false, false);
    while !(agent_ended && to_caller.is_empty()) {
        let is_gone = agent_hung_up || agent_ended;
        let takes = to_agent.has_room() && !is_gone;
        let for_stdin = PollFlags::RDHUP | when(takes, PollFlags::IN);
        let for_stdout = when(!to_caller.is_empty(), PollFlags::OUT);
        let for_agent = when(to_caller.has_room(), PollFlags::IN)
            | when(!to_agent.is_empty() && !is_gone, PollFlags::OUT);
        let mut watched =
            vec![PollFd::from_borrowed_fd(stdin, for_stdin), PollFd::from_borrowed_fd(stdout, for_stdout)];
        if !agent_ended && (to_caller.has_room() || !agent_hung_up) {
            watched.push(PollFd::from_borrowed_fd(agent, for_agent));
        }
        match poll(&mut watched, is_gone.then_some(&linger)) {
            // Nobody reads the last bytes of the agent.
            Ok(0) => return Ok(RelayEnd::Agent),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let seen = |at: usize| watched.get(at).map_or(PollFlags::empty(), PollFd::revents);
        let (seen_stdin, seen_stdout, seen_agent) = (seen(0), seen(1), seen(2));
        if seen_stdout.intersects(GONE) {
            return Ok(RelayEnd::Caller);
        }
        if seen_stdin.intersects(PollFlags::IN | GONE) {
            // An end of input behind bytes that cannot be taken in now: no more will come.
            if !takes || !matches!(to_agent.fill(stdin), Ok(true)) {
                return Ok(RelayEnd::Caller);
            }
        }
        if seen_agent.intersects(PollFlags::OUT) && to_agent.drain(agent).is_err() {
            // The reading side finds the end.
            to_agent = Flow::new(&[]);
        }
        if seen_agent.intersects(PollFlags::IN | GONE) {
            match to_caller.has_room() {
                true => agent_ended = !matches!(to_caller.fill(agent), Ok(true)),
                false => agent_hung_up = true,
            }
        }
        if seen_stdout.intersects(PollFlags::OUT) && to_caller.drain(stdout).is_err() {
            return Ok(RelayEnd::Caller);
        }
    }
    Ok(RelayEnd::Agent)
}

/// The other end is closed, at least for what comes from it.
const GONE: PollFlags = PollFlags::HUP.union(PollFlags::RDHUP).union(PollFlags::ERR).union(PollFlags::NVAL);

fn when(wanted: bool, flag: PollFlags) -> PollFlags {
    if wanted { flag } else { PollFlags::empty() }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::fd::OwnedFd,
        thread::{self, JoinHandle},
    };

    use super::*;

    /// A relay that runs, with its caller's and its agent's ends.
    struct Running {
        caller: UnixStream,
        agent: UnixStream,
        relay: JoinHandle<io::Result<RelayEnd>>,
    }

    impl Running {
        /// Standard input and output are one socket, as a dialler gives them.
        fn start() -> Self {
            let (caller, far) = UnixStream::pair().unwrap();
            let (agent, near) = UnixStream::pair().unwrap();
            let relay =
                thread::spawn(move || relay(&near, far.as_fd(), far.as_fd(), Duration::from_millis(20)));
            let mut running = Self { caller, agent, relay };
            let mut magic = vec![0; MAGIC.len()];
            running.caller.read_exact(&mut magic).unwrap();
            assert_eq!(magic, MAGIC);
            running
        }

        fn ended(self) -> RelayEnd {
            self.relay.join().unwrap().unwrap()
        }
    }

    /// Writes until there is no room any more.
    fn fill(stream: &UnixStream) {
        stream.set_nonblocking(true).unwrap();
        let piece = vec![7; 64 << 10];
        // The relay takes in some bytes meanwhile: full twice in a row is full.
        let mut full = 0;
        while full < 2 {
            match (&mut &*stream).write(&piece) {
                Ok(written) => full = if written > 0 { 0 } else { full + 1 },
                Err(_) => {
                    full += 1;
                    thread::yield_now();
                }
            }
        }
    }

    #[test]
    fn every_byte_comes_through_both_ways() {
        let running = Running::start();
        let bytes: Vec<u8> = (0..=255_u8).cycle().take(8 << 20).collect();
        let (mut caller, mut agent) =
            (running.caller.try_clone().unwrap(), running.agent.try_clone().unwrap());
        let (sent, sent_back) = (bytes.clone(), bytes.clone());
        let up = thread::spawn(move || caller.write_all(&sent).unwrap());
        let down = thread::spawn(move || agent.write_all(&sent_back).unwrap());
        let (mut caller, mut agent) = (&running.caller, &running.agent);
        let mut received = vec![0; bytes.len()];
        let mut taken = vec![0; bytes.len()];
        thread::scope(|scope| {
            scope.spawn(|| agent.read_exact(&mut taken).unwrap());
            caller.read_exact(&mut received).unwrap();
        });
        assert!(received == bytes && taken == bytes);
        up.join().unwrap();
        down.join().unwrap();
    }

    #[test]
    fn it_ends_with_its_caller_also_while_it_waits_to_write() {
        let running = Running::start();
        running.caller.shutdown(std::net::Shutdown::Both).unwrap();
        assert_eq!(running.ended(), RelayEnd::Caller);
        // Nobody reads at the agent: bytes wait before the end of input.
        let running = Running::start();
        fill(&running.caller);
        running.caller.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(running.ended(), RelayEnd::Caller);
        // Nobody reads at the caller.
        let running = Running::start();
        fill(&running.agent);
        running.caller.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(running.ended(), RelayEnd::Caller);
    }

    #[test]
    fn it_ends_with_its_agent_also_while_nobody_reads() {
        let mut running = Running::start();
        running.agent.write_all(b"last").unwrap();
        running.agent.shutdown(std::net::Shutdown::Both).unwrap();
        let mut text = String::new();
        running.caller.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), running.ended()), ("last", RelayEnd::Agent));
        let running = Running::start();
        fill(&running.agent);
        running.agent.shutdown(std::net::Shutdown::Both).unwrap();
        assert_eq!(running.ended(), RelayEnd::Agent);
    }

    #[test]
    fn the_callers_descriptor_is_left_as_it_was() {
        let (output, input) = rustix::pipe::pipe().unwrap();
        let (stdin, other): (OwnedFd, OwnedFd) = rustix::pipe::pipe().unwrap();
        drop(other);
        let (_agent, near) = UnixStream::pair().unwrap();
        let flags = || fcntl_getfl(&input).unwrap();
        let before = flags();
        assert_eq!(relay(&near, stdin.as_fd(), input.as_fd(), LINGER).unwrap(), RelayEnd::Caller);
        assert_eq!(flags(), before);
        drop(output);
    }
}
