//! Opens configuration files. A FIFO, a device or a directory with the path of a file is refused: a read of it could wait
//! for ever.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use nix::libc::O_NONBLOCK;

/// Opens a regular file for reading. Does not wait for the writer of a FIFO.
///
/// # Errors
/// If the file cannot be opened, or is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn only_a_regular_file_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for other in [&fifo, dir.path(), Path::new("/dev/zero")] {
            assert_eq!(open(other).unwrap_err().to_string(), "it is not a regular file", "{other:?}");
        }
        let file = dir.path().join("file");
        assert_eq!(open(&file).unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::write(&file, "text").unwrap();
        // A symbolic link is followed: Kubernetes mounts its configuration files so.
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let mut text = String::new();
        open(&link).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
    }
}
