//! A layer below a program's file system calls that makes chosen ones fail, as a disk with faults does. It is loaded with
//! `LD_PRELOAD`.
//!
//! `FAULT_DISK` names a file with one line, `FIRST LAST ERRNO FOLDER`: of the calls that change something below FOLDER, those
//! with the numbers FIRST to LAST fail with ERRNO; 0 kills the process instead. The count begins at 1 each time that the line changes. What failed is
//! appended to the file with `.failed` after its name, one `CALL PATH` a line. Without the file nothing fails.
//!
//! Must never change a call that it does not fail. It makes the calls itself, because the library's own functions of these
//! names are the ones that it replaces.

#![allow(
    clippy::missing_safety_doc,
    reason = "every export is a function of the C library, whose contract the caller keeps"
)]

mod calls;
mod kernel;
mod rule;
