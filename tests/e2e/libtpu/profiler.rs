//! The two profiler interfaces. Only the stand-in is loaded here: a real libtpu belongs into the child.

use fakes::libtpu::Staged;
use tpu_sys::{CallError, Library, legacy::Legacy, pjrt::Pjrt};

/// `hosts` of an XSpace: field 4, a string.
fn host_name(name: &str) -> Vec<u8> {
    [&[0x22, u8::try_from(name.len()).unwrap()], name.as_bytes()].concat()
}

fn open(settings: &str) -> (Staged, Library) {
    let staged = Staged::new(None, settings);
    let library = Library::open(&staged.library()).unwrap();
    (staged, library)
}

#[test]
fn pjrt_hands_a_trace_out_once_without_the_extra_byte() {
    for size in ["80", "104"] {
        let (_staged, library) = open(&format!("pjrt = {size}"));
        let pjrt = Pjrt::of(&library).unwrap().unwrap();
        assert_eq!(pjrt.profiler_api_size().to_string(), size);
        let mut profiler = pjrt.profiler(&[0x10, 0x02]).unwrap();
        profiler.start().unwrap();
        profiler.stop().unwrap();
        // The options arrived: the stand-in gives them back as the XSpace's warning, field 3.
        let expected = [b"\x1a\x041002".as_slice(), &host_name("fake-host")].concat();
        assert_eq!(profiler.collect().unwrap(), expected);
        assert_eq!(profiler.collect().unwrap(), b"");
    }
}

#[test]
fn a_refused_start_is_libtpus_own_error() {
    let (_staged, library) = open("start = refused");
    let refused =
        CallError::Status { code: 12, message: "No factory for ACTIVITY_TRACING on JELLYFISH".to_owned() };
    let pjrt = Pjrt::of(&library).unwrap().unwrap();
    assert_eq!(pjrt.profiler(&[]).unwrap().start(), Err(refused.clone()));
    assert_eq!(Legacy::of(&library).unwrap().profiler().unwrap().start(), Err(refused));
}

#[test]
fn the_legacy_profiler_hands_its_trace_out_in_two_calls() {
    let (_staged, library) = open("");
    let legacy = Legacy::of(&library).unwrap();
    let mut profiler = legacy.profiler().unwrap();
    profiler.start().unwrap();
    profiler.stop().unwrap();
    assert_eq!(profiler.collect().unwrap(), host_name("legacy-host"));
    assert_eq!(profiler.collect().unwrap(), b"");
}

#[test]
fn a_library_without_pjrt_has_none() {
    let (_staged, library) = open("pjrt = none");
    assert!(Pjrt::of(&library).unwrap().is_none());
    let (_staged, library) = open("pjrt = 16");
    let pjrt = Pjrt::of(&library).unwrap().unwrap();
    assert_eq!(pjrt.profiler(&[]).unwrap_err(), CallError::Missing("PJRT profiler"));
}
