//! Programs that speak the wire by hand, and wrongly.

use fakes::wait::eventually;

use super::*;

/// Sends packets, and says the answers until a certain one comes or the agent closes.
const SPEAK: &str = "
import json, select, socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect(sys.argv[1])
for packet in json.loads(sys.argv[2]):
    try:
        s.send(packet.encode('latin-1'))
    except OSError:
        break
answers = []
while select.select([s], [], [], 20)[0]:
    try:
        answer = s.recv(512).decode()
    except OSError:
        break
    if not answer:
        break
    answers.append(answer)
    if answer == sys.argv[3]:
        break
print(json.dumps(answers))
";

impl MarkedHost {
    /// What the agent answers to these packets until it says `last` or closes.
    fn speak(&self, packets: &[String], last: &str) -> Vec<String> {
        let packets = serde_json::to_string(packets).unwrap();
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", SPEAK]).arg(self.socket()).args([&packets, last]);
        let ended = start_as(command).end();
        serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
    }
}

fn step(step: &str, second: &str) -> String {
    format!(
        r#"1772323200000000000 {{"job_name":"j","step_count":{step},"step_start_time":17723232{second}}}"#
    )
}

#[test]
fn marks_out_of_order_doubled_and_of_two_recorders_are_one_job() {
    let host = MarkedHost::new("");
    let packet = |recorder: &str, first: u32, marks: &[String]| {
        [&[format!("M1 {recorder} {first}")], marks].concat().join("\n")
    };
    let (zero, one, two, three) =
        (step("0", "00.0"), step("1", "02.0"), step("2", "04.0"), step("3", "06.0"));
    let first = [
        packet("a", 1, &[r#"1772323190000000000 {"job_name":"j","job_start_time":1772323190.0}"#.to_owned()]),
        packet("a", 2, &[one.clone(), zero.clone()]),
        packet("a", 2, &[one.clone(), zero.clone(), two.clone()]),
        packet("a", 1, &["late".to_owned()]),
    ];
    assert_eq!(host.speak(&first, "A1 4").last().map(String::as_str), Some("A1 4"));
    assert_eq!(host.speak(&[packet("b", 1, &[two, three])], "A1 2").last().map(String::as_str), Some("A1 2"));
    assert_eq!(host.counts("j"), (6, 0, 0));
    let strict = host.goodput("j", &["--strict", "--now", "1772323206"]);
    assert_eq!((&strict["productive_seconds"], &strict["disruptions"]), (&6.0.into(), &0.into()), "{strict}");
    // A gap: what never came is counted once, also if it comes later.
    let gap = [packet("b", 9, &[step("4", "08.0")]), packet("b", 5, &[step("5", "09.0")])];
    host.speak(&gap, "A1 9");
    eventually("the gap", || (host.counts("j") == (7, 6, 0)).then_some(()));
}

#[test]
fn absurd_numbers_are_refused_and_named_and_the_rest_counts() {
    let host = MarkedHost::new("");
    let absurd = [
        step("0", "00.0"),
        step("NaN", "00.0"),
        step("-1", "00.0"),
        step("9223372036854775808", "00.0"),
        step("1e300", "00.0"),
        step("1", "00.0e300"),
        step("null", "00.0"),
        "9223372036854775808 {}".to_owned(),
        "-5 {}".to_owned(),
        "5 {\"job_name\":\"j\\u0000\"}".to_owned(),
        "5 \u{ff}".to_owned(),
        String::new(),
        format!("5 {{\"job_name\":\"j\",\"x\":\"{}\"}}", "x".repeat(9000)),
        step("1", "02.0"),
    ];
    let packet = format!("M1 r 1\n{}", absurd.join("\n"));
    let answers = host.speak(&[packet], "A1 14");
    let refused: u32 = answers
        .iter()
        .filter_map(|answer| answer.strip_prefix("R1 ")?.split(' ').next()?.parse::<u32>().ok())
        .sum();
    assert_eq!(refused, 12, "{answers:?}");
    assert_eq!(host.counts("j"), (2, 0, 12));
    let metrics = host.agent().get("/metrics", "").body;
    let reasons = metrics
        .lines()
        .filter(|line| line.starts_with("tpuscope_marks_refused_total{") && !line.ends_with(" 0.0"));
    assert_eq!(reasons.count(), 6, "{metrics}");
}

#[test]
fn packets_that_are_none_end_their_connection_alone() {
    let host = MarkedHost::new("");
    let good = format!("M1 good 1\n{}", step("0", "00.0"));
    for (bad, says) in [
        ("", ""),
        ("GET / HTTP/1.1\r\n\r\n", "E1 a packet begins with"),
        ("M9 r 1\nx", "E1 a packet begins with"),
        ("M1 R 1\nx", "E1 the id of a recorder"),
        ("M1 r 18446744073709551616\nx", "E1 the number of a mark"),
    ] {
        let answers = host.speak(&[bad.to_owned()], "never");
        assert_eq!(answers.len(), usize::from(!says.is_empty()), "{answers:?}");
        assert!(answers.iter().all(|answer| answer.starts_with(says)), "{answers:?}");
    }
    let large = format!("M1 r 1\n{}", "x".repeat(100_000));
    assert!(host.speak(&[large], "never")[0].starts_with("E1 a packet has at most"));
    let two = [good.clone(), "M1 other 1\nx".to_owned()];
    assert!(host.speak(&two, "never").iter().any(|answer| answer.starts_with("E1 the connection is")));
    assert_eq!(host.speak(&[good], "A1 1"), ["A1 1"]);
    assert_eq!(host.counts("j"), (1, 0, 0));
}
