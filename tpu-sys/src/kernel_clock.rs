//! What the kernel knows of its clock. Reads only; no other crate may have the `unsafe` that the call needs.

use std::{mem, ptr};

/// The kernel counts the error of a clock that nobody corrects up to this, in microseconds.
const MAX_ERROR: libc::c_long = 16_000_000;

/// Whether something keeps the host's clock right, such as chrony or systemd-timesyncd. False if the kernel does not say.
pub fn is_synchronised() -> bool {
    // SAFETY: all fields are numbers, for which zero is a value. `modes` is 0: nothing is to be set.
    let mut clock: libc::timex = unsafe { mem::zeroed() };
    // SAFETY: the kernel writes one `timex` to the address, which is that of one.
    let state = unsafe { libc::adjtimex(ptr::from_mut(&mut clock)) };
    // Not STA_UNSYNC: chrony leaves it set where it does not set the hardware's clock.
    state >= 0 && clock.maxerror < MAX_ERROR
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_asked_and_nothing_is_set() {
        assert_eq!(is_synchronised(), is_synchronised());
    }
}
