//! A stand-in libtpu.so with the real ABI, driven by a file beside it (or by the environment) and able to
//! misbehave in every way that a libtpu might.
//!
//! It is written from the measured offsets, on purpose not from the structs of `tpu-sys`: a wrong layout there
//! must not be right here. [`settings`] lists what can be set. It checks its callers too: a client destroyed
//! twice or used after its end aborts, and the metric `live` counts what was not freed.

#![allow(clippy::missing_safety_doc, reason = "every export is the C ABI, whose contract the caller keeps")]

mod abi;
mod behavior;
mod legacy;
mod pjrt;
mod sdk;
mod settings;

use behavior::Behavior;

/// What a loader runs when the library is loaded.
#[used]
// SAFETY: the section holds pointers to functions of this type.
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

extern "C" fn on_load() {
    if let Some(behavior) = settings::get("load") {
        Behavior::parse(&behavior).act();
    }
}
