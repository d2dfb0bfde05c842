//! The metric services of a TPU host with a busy workload, as a process of its own: for the demo, the benches, and
//! tests in a network namespace. Prints one JSON line with its addresses when it listens, and runs until it is killed
//! or its standard input closes (with `--while-stdin`).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a fake fails loudly")]
#![forbid(unsafe_code)]

use std::{
    fs::File,
    io::{Read, Write},
    net::SocketAddr,
    time::Duration,
};

use fakes::{
    fake_grpc::{Reply, ServerAddress},
    fake_host_service::{self, FakeHostService},
    fake_orbax::{self, FakeOrbax, Page},
    fake_runtime::{DUTY, FakeRuntime, HBM_BYTES, HBM_USED, per_device, workload},
};

const USAGE: &str =
    "fake-tpu-host [--chips N] [--cores-per-chip N] [--first-device N] [--runtime ADDRESS[,ADDRESS…]]
              [--host-service ADDRESS|unix:///PATH] [--orbax ADDRESS] [--hold PATH]… [--reuse-port] [--still]
              [--while-stdin | --scripted]
ADDRESS is like 127.0.0.1:8431; [::]:8431 is dual stack; port 0 takes a free one.
The chips are dealt out evenly to the runtime addresses. --hold opens a device node, as the holder of a
chip does. --still keeps the values as they are. --scripted does too, except for what each line of standard input
says, which it answers with the line: {\"step\": N, \"duty\": PERCENT or one for each device, \"hbm\": PERCENT in use,
\"orbax\": PAGE}. The other values are those of the step.";

#[derive(Default)]
struct Args {
    chips: u32,
    cores: u32,
    first: i64,
    runtime: Vec<SocketAddr>,
    host_service: Option<String>,
    orbax: Option<SocketAddr>,
    held: Vec<File>,
    reuse_port: bool,
    still: bool,
    while_stdin: bool,
    scripted: bool,
}

fn parse() -> Args {
    let mut args = Args { chips: 4, cores: 1, ..Args::default() };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_else(|| panic!("{word} wants a value\n{USAGE}"));
        match word.as_str() {
            "--chips" => args.chips = value().parse().expect("a number of chips"),
            "--cores-per-chip" => args.cores = value().parse().expect("a number of cores"),
            "--first-device" => args.first = value().parse().expect("a device id"),
            "--runtime" => args.runtime = addresses(&value()),
            "--host-service" => args.host_service = Some(value()),
            "--orbax" => args.orbax = Some(value().parse().expect("an address")),
            "--hold" => args.held.push(File::open(value()).expect("a device node")),
            "--reuse-port" => args.reuse_port = true,
            "--still" => args.still = true,
            "--while-stdin" => args.while_stdin = true,
            "--scripted" => args.scripted = true,
            _ => panic!("unknown flag {word}\n{USAGE}"),
        }
    }
    args
}

fn addresses(list: &str) -> Vec<SocketAddr> {
    list.split(',').map(|address| address.parse().expect("an address")).collect()
}

fn listen(text: &str) -> ServerAddress {
    match text.strip_prefix("unix://") {
        Some(path) => ServerAddress::Unix(path.into()),
        None => ServerAddress::Tcp(text.parse().expect("an address")),
    }
}

fn main() {
    let args = parse();
    let devices: Vec<i64> = (args.first..args.first + i64::from(args.chips * args.cores)).collect();
    let share = devices.len().div_ceil(args.runtime.len().max(1));
    let shared = |&at: &SocketAddr| {
        if args.reuse_port { ServerAddress::SharedTcp(at) } else { ServerAddress::Tcp(at) }
    };
    let runtimes: Vec<_> = args
        .runtime
        .iter()
        .zip(devices.chunks(share))
        .map(|(at, devices)| {
            let fake = FakeRuntime::start(shared(at));
            fake.set_all(workload(devices, 1));
            (fake, devices)
        })
        .collect();
    let host_service = args.host_service.as_deref().map(|at| FakeHostService::start(listen(at), args.chips));
    let orbax = args.orbax.map(FakeOrbax::start);

    let addresses = serde_json::json!({
        "runtime": runtimes.iter().map(|(fake, _)| fake.address().to_string()).collect::<Vec<_>>(),
        "host_service": host_service.as_ref().map(|fake| fake.shown()),
        "orbax": orbax.as_ref().map(|fake| fake.address().to_string()),
    });
    println!("{addresses}");
    std::io::stdout().flush().unwrap();

    if args.scripted {
        return follow_script(&runtimes, orbax.as_ref());
    }
    if args.while_stdin {
        std::thread::spawn(|| {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            std::process::exit(0);
        });
    }
    for step in 2_u32.. {
        std::thread::sleep(Duration::from_secs(1));
        if args.still {
            continue;
        }
        for (fake, devices) in &runtimes {
            fake.set_all(workload(devices, i64::from(step)));
        }
        if let Some(fake) = &host_service {
            fake.set_reply(Reply::of(&fake_host_service::metrics(args.chips, step)));
        }
        if let Some(fake) = &orbax {
            fake.set(Page::Text(fake_orbax::page(step)));
        }
    }
}

/// A value for each device, by its position among them.
fn of_devices(devices: &[i64], value: impl Fn(usize) -> f64) -> Vec<(i64, f64)> {
    devices.iter().enumerate().map(|(at, device)| (*device, value(at))).collect()
}

/// Shows what the lines of standard input say, until it closes.
fn follow_script(runtimes: &[(FakeRuntime, &[i64])], orbax: Option<&FakeOrbax>) {
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let wanted: serde_json::Value = serde_json::from_str(&line).unwrap();
        for (fake, devices) in runtimes {
            if let Some(step) = wanted["step"].as_i64() {
                fake.set_all(workload(devices, step));
            }
            if let Some(used) = wanted["hbm"].as_f64() {
                let bytes = used / 100.0 * HBM_BYTES;
                fake.set(&per_device(HBM_USED, &of_devices(devices, |_| bytes), true));
            }
            let duty = &wanted["duty"];
            if let Some(duty) = duty.as_f64() {
                fake.set(&per_device(DUTY, &of_devices(devices, |_| duty), false));
            } else if duty.is_array() {
                fake.set(&per_device(DUTY, &of_devices(devices, |at| duty[at].as_f64().unwrap()), false));
            }
        }
        if let (Some(page), Some(fake)) = (wanted["orbax"].as_str(), orbax) {
            fake.set(Page::Text(page.to_owned()));
        }
        println!("{line}");
        std::io::stdout().flush().unwrap();
    }
}
