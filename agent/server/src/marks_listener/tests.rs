//! The marks socket with clients of this process.

use std::{os::fd::OwnedFd, path::Path};

use marks::{
    inbox::{self, Writer},
    step_series::StepSeries,
};
use model::time::SystemClock;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use store::{
    marks::{MarkLimits, MarkedJob, Marks},
    settings::MinFree,
    state::StateDb,
};
use tempfile::TempDir;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::{agent_socket::AgentSocket, settings::FileMode};

const RATE: u32 = 2000;

struct Agent {
    folder: TempDir,
    _socket: AgentSocket,
    marks: Arc<Marks>,
    quotas: Arc<Quotas>,
    /// Stores nothing before it is started.
    writer: Option<Writer>,
    tasks: Vec<AbortOnDropHandle<()>>,
}

impl Agent {
    fn new(max_connections: u16, overflow_uid: Option<u32>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(SystemClock);
        let db = Arc::new(StateDb::new(folder.path(), clock.clone()));
        let limits =
            MarkLimits { keep: Duration::from_secs(60), max_bytes: 1 << 30, min_free: MinFree::Share(0) };
        let steps = Arc::new(StepSeries::new(clock.clone()));
        let marks = Arc::new(Marks::new(folder.path(), db, limits, clock));
        let (inbox, writer) = inbox::inbox(Arc::clone(&marks), steps);
        let quotas = Arc::new(Quotas::new(RATE));
        let (_, workloads) = watch::channel(HostSnapshot::default());
        let intake = MarkIntake { inbox, quotas: Arc::clone(&quotas), workloads };
        let mode = FileMode::try_from("0666".to_owned()).unwrap();
        let (socket, listener) =
            AgentSocket::claim_packets(&folder.path().join("marks.sock"), mode, "").unwrap();
        let listener = MarksListener::new(listener, intake, max_connections, overflow_uid).unwrap();
        let serving = tokio::spawn(async move { listener.serve(CancellationToken::new()).await.unwrap() });
        let tasks = vec![AbortOnDropHandle::new(serving)];
        Self { folder, _socket: socket, marks, quotas, writer: Some(writer), tasks }
    }

    fn start_writer(&mut self) {
        let mut writer = self.writer.take().unwrap();
        let writing = tokio::spawn(async move { writer.run(CancellationToken::new()).await });
        self.tasks.push(AbortOnDropHandle::new(writing));
    }

    fn connect(&self) -> Client {
        Client::to(&self.folder.path().join("marks.sock"))
    }

    fn job(&self, name: &str) -> Option<MarkedJob> {
        self.marks.jobs(Some(name), None).unwrap().pop()
    }
}

struct Client(UnixStream);

impl Client {
    fn to(path: &Path) -> Self {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket: OwnedFd =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        Self(UnixStream::from_std(socket.into()).unwrap())
    }

    async fn send(&self, packet: impl AsRef<[u8]>) {
        let send =
            || Ok(rustix::net::send(&self.0, packet.as_ref(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?);
        self.0.async_io(Interest::WRITABLE, send).await.unwrap();
    }

    /// The next answer; `None` once the agent has closed.
    async fn answer(&self) -> Option<String> {
        let mut buffer = [0; 512];
        let receive = || Ok(rustix::net::recv(&self.0, &mut buffer[..], RecvFlags::DONTWAIT)?.1);
        match self.0.async_io(Interest::READABLE, receive).await {
            Ok(0) | Err(_) => None,
            Ok(bytes) => Some(String::from_utf8(buffer[..bytes].to_vec()).unwrap()),
        }
    }

    /// Reads answers until `stored` is acknowledged; the others before it.
    async fn until_stored(&self, stored: u64) -> Vec<String> {
        let mut others = Vec::new();
        while let Some(answer) = self.answer().await {
            if answer == format!("A1 {stored}") {
                return others;
            }
            if !answer.starts_with("A1 ") {
                others.push(answer);
            }
        }
        panic!("closed before {stored} was stored: {others:?}")
    }
}

fn line(job: &str) -> String {
    format!(r#"5 {{"job_name":"{job}","job_start_time":5.0}}"#)
}

#[tokio::test]
async fn marks_are_acknowledged_when_they_are_stored() {
    let mut agent = Agent::new(64, None);
    let client = agent.connect();
    client.send(format!("M1 r 1\n{}\n{}", line("j"), line("j"))).await;
    client.send(format!("M1 r 3\n{}", line("j"))).await;
    assert!(agent.job("j").is_none());
    agent.start_writer();
    assert_eq!(client.until_stored(3).await, [""; 0]);
    let job = agent.job("j").unwrap();
    assert_eq!((job.marks, job.uid), (3, Uid::effective().as_raw()));
    // The program was killed before it heard of it, and sends again.
    let again = agent.connect();
    again.send(format!("M1 r 2\n{}\n{}\n{}", line("j"), line("j"), line("j"))).await;
    assert_eq!(again.until_stored(4).await, [""; 0]);
    assert_eq!(agent.job("j").unwrap().marks, 4);
}

#[tokio::test]
async fn what_is_refused_is_named_and_not_sent_again() {
    let mut agent = Agent::new(64, None);
    agent.start_writer();
    let client = agent.connect();
    let marks = [
        line("j"),
        r#"5 {"job_start_time":5}"#.to_owned(),
        r#"5 {"job_name":"j","job_start_time":NaN}"#.to_owned(),
        r#"5 {"job_name":"j","job_start_time":-1}"#.to_owned(),
        r#"5 {"job_name":"j","job_start_time":9223372036854775808}"#.to_owned(),
    ];
    client.send(format!("M1 r 1\n{}", marks.join("\n"))).await;
    let refusals = client.until_stored(5).await;
    assert_eq!(refusals.len(), 3, "{refusals:?}");
    assert!(refusals.iter().any(|text| text.starts_with("R1 2 ")), "{refusals:?}");
    let job = agent.job("j").unwrap();
    assert_eq!((job.marks, job.refused, job.lost), (1, 4, 0));
}

#[tokio::test]
async fn a_packet_that_is_none_ends_the_connection_with_a_reason() {
    let agent = Agent::new(64, None);
    let large = format!("M1 r 1\n{}", "x".repeat(PACKET_BYTES));
    for packet in ["nonsense", "M1 R 1\nx", "M1 r 0\nx", "M2 r 1\nx", large.as_str()] {
        let client = agent.connect();
        client.send(packet).await;
        let answer = client.answer().await.unwrap();
        assert!(answer.starts_with("E1 "), "{answer}");
        assert_eq!(client.answer().await, None);
    }
    let client = agent.connect();
    client.send(format!("M1 r 1\n{}", line("j"))).await;
    client.send(format!("M1 s 1\n{}", line("j"))).await;
    let reason = format!("E1 {}", PacketError::OtherRecorder);
    assert_eq!(client.answer().await, Some(reason));
}

#[tokio::test]
async fn there_is_room_for_so_many_programs() {
    let agent = Agent::new(2, None);
    let first = (agent.connect(), agent.connect());
    let third = agent.connect();
    assert_eq!(third.answer().await, Some(AgentAnswer::NoConnection.to_string()));
    assert_eq!(third.answer().await, None);
    drop(first);
}

#[tokio::test]
async fn the_id_of_many_users_may_not_mark() {
    let agent = Agent::new(64, Some(Uid::effective().as_raw()));
    assert_eq!(agent.connect().answer().await, None);
}

#[tokio::test]
async fn a_user_who_sends_too_fast_is_read_more_slowly_and_loses_nothing() {
    let mut agent = Agent::new(64, None);
    agent.start_writer();
    // Other programs of this user have used up what may be sent at once.
    let uid = Uid::effective().as_raw();
    agent.quotas.charge(uid, 2 * usize::try_from(RATE).unwrap(), 0, Instant::now());
    let client = agent.connect();
    let marks = 100;
    for number in 1..=marks {
        client.send(format!("M1 r {number}\n{}", line("j"))).await;
    }
    client.until_stored(marks).await;
    let job = agent.job("j").unwrap();
    assert_eq!((job.marks, job.lost), (marks, 0));
}

#[tokio::test]
async fn what_a_program_sent_before_it_ended_is_stored_though_it_read_no_answer() {
    let mut agent = Agent::new(64, None);
    agent.start_writer();
    let client = agent.connect();
    client.send(format!("M1 r 1\n{}", line("j"))).await;
    client.0.readable().await.unwrap();
    // What comes now is read slowly: the program is gone before.
    agent.quotas.charge(Uid::effective().as_raw(), 2 * usize::try_from(RATE).unwrap(), 0, Instant::now());
    let marks = 50;
    for number in 2..=marks {
        client.send(format!("M1 r {number}\n{}", line("j"))).await;
    }
    drop(client);
    while agent.job("j").is_none_or(|job| job.marks < marks) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(agent.job("j").unwrap().lost, 0);
}
