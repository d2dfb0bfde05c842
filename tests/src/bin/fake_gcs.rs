//! The Cloud Storage double and the metadata server, to be used by hand: `fake-gcs [ADDRESS] [--discard]`. Prints
//! where it listens and a key file that points there, then each request; ends when standard input closes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a fake fails loudly")]
#![forbid(unsafe_code)]

use std::{
    env,
    io::{Read, stdin},
    thread,
    time::Duration,
};

use fakes::fake_gcs::{BUCKET, FakeGcs, GcsContents};

fn main() {
    let (mut address, mut contents) = ("127.0.0.1:0".parse().unwrap(), GcsContents::Kept);
    for word in env::args().skip(1) {
        match word.as_str() {
            "--discard" => contents = GcsContents::Discarded,
            word => match word.parse() {
                Ok(given) => address = given,
                Err(_) => {
                    eprintln!("usage: fake-gcs [ADDRESS:PORT] [--discard]");
                    std::process::exit(if matches!(word, "--help" | "-h") { 0 } else { 2 });
                }
            },
        }
    }
    let server = FakeGcs::start_at(address, contents);
    println!(
        "{}",
        serde_json::json!({ "url": server.url(), "bucket": BUCKET, "credentials": server.credentials_file() })
    );
    let reader = thread::spawn(|| stdin().read_to_end(&mut Vec::new()));
    let mut shown = 0;
    while !reader.is_finished() {
        let requests = server.requests();
        for request in &requests[shown..] {
            println!("{request:?}");
        }
        shown = requests.len();
        thread::sleep(Duration::from_millis(200));
    }
}
