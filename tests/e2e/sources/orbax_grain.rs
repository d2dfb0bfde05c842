//! The endpoint of Orbax and Grain.

use fakes::fake_orbax::{FakeOrbax, Page};
use model::{
    catalog::of_origin,
    device::Generation,
    sample::Origin,
    workload::{Address, EndpointKind},
};
use sampling::sources::{Tick, orbax_grain::OrbaxGrainSource};

use super::{chips, gauges, read, why};

fn at(fakes: &[&FakeOrbax]) -> Tick {
    let addresses: Vec<_> = fakes.iter().map(|fake| Address::Tcp(fake.address())).collect();
    super::tick(EndpointKind::OrbaxGrain, &addresses, &chips(Generation::V6e, 1))
}

fn fake() -> FakeOrbax {
    FakeOrbax::start("127.0.0.1:0".parse().unwrap())
}

#[tokio::test]
async fn their_metrics_in_base_units_and_nothing_else() {
    let fake = fake();
    let reading = read(&mut OrbaxGrainSource::default(), &mut at(&[&fake])).await;
    for (metric, value) in [
        ("jax_orbax_write_bytes", 1.5e9),
        ("jax_orbax_write_bytes_per_second", 2.5e9),
        ("jax_checkpoint_write_async_blocking_duration_seconds", 0.25),
        ("grain_python_dataset_next_duration_seconds", 3e-6),
        ("grain_python_dataset_prefetch_buffer_ready_elements", 5.0),
    ] {
        let found = gauges(&reading, metric);
        assert!(found.len() == 1 && (found[0].2 - value).abs() <= value * 1e-12, "{metric}: {found:?}");
    }
    assert_eq!(reading.samples.len(), of_origin(Origin::OrbaxGrain).count());
    assert_eq!(fake.scrapes(), 1);
}

#[tokio::test]
async fn bad_pages_are_bounded_explained_and_delay_no_other() {
    for (page, says) in [
        (Page::Status(404), "HTTP status 404"),
        (Page::Hang, "no page within 1000 ms"),
        (Page::Raw(b"\x00\x01 no http at all\r\n\r\n".to_vec()), "no HTTP"),
        (Page::Endless, "512 KiB"),
        (Page::Text("process_cpu_seconds_total 1\n".into()), "no value of Orbax or Grain"),
    ] {
        let (bad, good) = (fake(), fake());
        bad.set(page);
        let reading = read(&mut OrbaxGrainSource::default(), &mut at(&[&bad, &good])).await;
        let why = why(&reading, &bad.address().to_string());
        assert!(why.contains(says), "{why}");
        assert_eq!(reading.samples.len(), of_origin(Origin::OrbaxGrain).count(), "{says}");
    }
}
