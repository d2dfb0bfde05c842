//! Many simulated hosts over mutual TLS, with clocks that are wrong and networks that are slow, unequal and uneven: what the
//! session says of their clocks and starts is true.
//!
//! `TPUSCOPE_SIMULATED_HOSTS=1024` takes more of them (`make soak`).

use std::{env, fs, time::Duration};

use fakes::{
    command::{run, start},
    simulated_hosts::{BoundsCheck, SimulatedHosts, TrueHost},
};

use crate::schema::Schema;

/// The longest time that a host may take on a machine that does much besides: all of them share it.
const LIMIT_OF_EACH: Duration = Duration::from_secs(5);

#[test]
fn clocks_and_starts_of_many_hosts_lie_within_their_stated_bounds() {
    let count = env::var("TPUSCOPE_SIMULATED_HOSTS").map_or(24, |count| count.parse().unwrap());
    let seed = fastrand::u64(..);
    println!("{count} hosts, seed {seed}");
    let folder = tempfile::tempdir().unwrap();
    for words in [
        &["certs", "init", "ca"][..],
        &["certs", "issue", "ca", "--agent", "127.0.0.1"],
        &["certs", "issue", "ca", "--operator", "alice"],
    ] {
        let ended = run(folder.path(), words);
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    let mut random = fastrand::Rng::with_seed(seed);
    let truths: Vec<TrueHost> = (0..count).map(|_| TrueHost::random(&mut random)).collect();
    // Long enough for a machine that does much besides.
    let lead = Duration::from_millis(500);
    // A thousand hosts are about clocks and starts: all parts together have no more bytes than those of 256.
    let part = (1 << 20).min((256 << 20) / count);
    let hosts = SimulatedHosts::start(&truths, part, lead, &folder.path().join("ca/127.0.0.1"));
    fs::write(folder.path().join("hosts"), hosts.list()).unwrap();
    let arguments = [
        "capture",
        "--hosts-file",
        "hosts",
        "--tls-dir",
        "ca/alice",
        "--duration",
        "200ms",
        "--session",
        "many",
    ];
    let ended = start(folder.path(), &arguments).end_within(LIMIT_OF_EACH * u32::try_from(count).unwrap());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let session = folder.path().join("plugins/profile/many");
    let manifest = serde_json::from_slice(&fs::read(session.join("manifest.json")).unwrap()).unwrap();
    Schema::open("manifest").admits(&manifest);
    let verdict = BoundsCheck::of(&manifest, &hosts.starts());
    assert_eq!((verdict.hosts, verdict.wrong_offsets, verdict.wrong_starts), (count, 0, 0), "{verdict:?}");
    // Each has its part.
    let parts = fs::read_dir(&session).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
    assert_eq!(parts.filter(|size| *size == part as u64).count(), count);
}
