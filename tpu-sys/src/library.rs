//! Loading a libtpu.

use std::{
    mem::ManuallyDrop,
    path::{Path, PathBuf},
};

use libloading::os::unix::{Library as Dl, RTLD_LOCAL, RTLD_NOW};

/// Why a library could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The dynamic loader refused.
    #[error("the dynamic loader refuses {}: {said}", .path.display())]
    Open {
        /// Path of the library.
        path: PathBuf,
        /// What the loader said.
        said: String,
    },
}

/// The loader's own words, which stand behind the error.
fn said(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// A loaded library. It is never unloaded: threads of its own may run in it.
#[derive(Debug)]
pub struct Library(ManuallyDrop<Dl>);

impl Library {
    /// Loads `path`. From here on the library's code runs in this process: call it only in a process that may be
    /// lost, and with the environment that the library should see.
    ///
    /// # Errors
    /// When the dynamic loader refuses.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        // SAFETY: running a library's initialisers is sound only if the library is; the callers of this crate are
        // processes of no other use, as its documentation demands.
        unsafe { Dl::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
            .map(|library| Self(ManuallyDrop::new(library)))
            .map_err(|error| LoadError::Open { path: path.to_owned(), said: said(&error) })
    }

    /// The function called `name`, if the library exports it.
    ///
    /// # Safety
    /// `F` is the function's type.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &str) -> Option<F> {
        // SAFETY: the caller's promise. The pointer stays good, as the library is never unloaded.
        unsafe { self.0.get::<F>(name) }.ok().map(|symbol| *symbol)
    }

    /// Whether the library exports a symbol called `name`.
    pub fn exports(&self, name: &str) -> bool {
        self.address(name).is_some()
    }

    /// The address of the symbol called `name`.
    pub(crate) fn address(&self, name: &str) -> Option<usize> {
        // SAFETY: the pointer is taken as a number only.
        unsafe { self.0.get::<*const ()>(name) }.ok().map(|symbol| symbol.as_raw_ptr() as usize)
    }
}
