//! A real sshd on the loopback for the user of the test: own configuration, keys and port; and an `ssh` that knows it.

use std::{
    fs::{self, File, Permissions},
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use nix::unistd::{Uid, User};
use tempfile::TempDir;

use crate::{harness::tpuscope, wait::until};

/// The server, which ends with the value.
#[derive(Debug)]
pub struct LoopbackSshd {
    server: Child,
    folder: TempDir,
    port: u16,
}

impl LoopbackSshd {
    /// Starts one. Logins have `tpuscope` in their PATH, if `with_tpuscope`.
    ///
    /// # Panics
    /// If there is no OpenSSH.
    pub fn start(with_tpuscope: bool) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = |name: &str| folder.path().join(name);
        for key in ["host_key", "key", "other_key"] {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(at(key))
                .status();
            assert!(made.expect("ssh-keygen runs: tests/setup.sh installs it").success());
        }
        fs::copy(at("key.pub"), at("authorized_keys")).expect("a file");
        fs::create_dir(at("bin")).expect("a folder");
        if with_tpuscope {
            std::os::unix::fs::symlink(tpuscope(), at("bin/tpuscope")).expect("a link");
        }
        if Uid::effective().is_root() {
            fs::create_dir_all("/run/sshd").expect("root may");
        }
        let port = free_port();
        let config = format!(
            "ListenAddress 127.0.0.1:{port}\nHostKey {host_key}\nAuthorizedKeysFile {keys}\nPidFile none\nStrictModes no\n\
             UsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n\
             AcceptEnv TPUSCOPE_SOCKET\nSetEnv PATH={bin}:/usr/bin:/bin\n",
            host_key = at("host_key").display(),
            keys = at("authorized_keys").display(),
            bin = at("bin").display(),
        );
        fs::write(at("sshd_config"), config).expect("a file");
        let host_key = fs::read_to_string(at("host_key.pub")).expect("a key");
        fs::write(at("known_hosts"), format!("[127.0.0.1]:{port} {host_key}")).expect("a file");
        let log = File::create(at("log")).expect("a file");
        let server = Command::new("/usr/sbin/sshd")
            .args(["-D", "-e", "-f"])
            .arg(at("sshd_config"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("sshd runs: tests/setup.sh installs it");
        let sshd = Self { server, folder, port };
        until("sshd to listen", || sshd.log().contains("Server listening"));
        sshd
    }

    /// What it wrote to its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// The lines of an `ssh_config` for a host of this name here, whose agent has this socket.
    pub fn host(&self, name: &str, socket: &Path) -> String {
        let user = User::from_uid(Uid::effective()).expect("the system answers").expect("a user").name;
        format!(
            "Host {name}\nHostName 127.0.0.1\nPort {}\nUser {user}\nIdentityFile {}\nUserKnownHostsFile {}\n\
             SetEnv TPUSCOPE_SOCKET={}\n",
            self.port,
            self.folder.path().join("key").display(),
            self.folder.path().join("known_hosts").display(),
            socket.display(),
        )
    }

    /// A key that it does not let in.
    pub fn other_key(&self) -> PathBuf {
        self.folder.path().join("other_key")
    }

    /// The processes of its logins.
    pub fn logins(&self) -> Vec<u32> {
        let children = format!("/proc/{0}/task/{0}/children", self.server.id());
        let text = fs::read_to_string(children).unwrap_or_default();
        text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    }
}

impl Drop for LoopbackSshd {
    fn drop(&mut self) {
        // Already over is as good.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// A port that nobody listens on now.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("bound").port()
}

/// Puts an `ssh` into `bin` that reads this configuration instead of the user's. It is the real one.
///
/// # Panics
/// If there is none.
pub fn configured_ssh(bin: &Path, config: &str) {
    let (file, program) = (bin.join("ssh_config"), bin.join("ssh"));
    fs::write(&file, format!("{config}\nHost *\nIdentitiesOnly yes\nGlobalKnownHostsFile /dev/null\nStrictHostKeyChecking yes\n"))
        .expect("a file");
    let found = Command::new("sh").args(["-c", "command -v ssh"]).output().expect("sh runs");
    let real = String::from_utf8(found.stdout).expect("text");
    assert!(!real.is_empty(), "ssh is missing: run tests/setup.sh");
    fs::write(&program, format!("#!/bin/sh\nexec {} -F {} \"$@\"\n", real.trim(), file.display()))
        .expect("a file");
    fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("ours");
}
