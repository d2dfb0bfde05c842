//! Real containers: one booted with systemd (systemd-nspawn), and pods of plain ones (podman), both from the small
//! Debian root that `tests/setup.sh` makes. Each is taken down when dropped.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

use tempfile::TempDir;

use crate::harness::{peer, workspace};

fn tool(name: &str) -> PathBuf {
    workspace().join("tests/tools").join(name)
}

/// The standard output of a command that must succeed.
fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A container that was booted by its own systemd, with a network of its own.
#[derive(Debug)]
pub struct Booted {
    dir: TempDir,
}

impl Booted {
    /// Boots it, with `read_only` folders visible at their own paths.
    pub fn boot(read_only: &[&Path]) -> Self {
        let dir = TempDir::new().unwrap();
        let root = peer("rootfs.complete").with_file_name("rootfs");
        let mut command = Command::new(tool("nspawn-up.sh"));
        command.arg(root).arg(dir.path());
        for path in read_only {
            command.arg(format!("--bind-ro={}", path.display()));
        }
        let container = Self { dir };
        succeed(&mut command);
        container
    }

    /// A command inside.
    pub fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(tool("in-ctr.sh"));
        command.arg(self.dir.path()).arg(program).args(arguments);
        command
    }

    /// Runs a command inside that must succeed; its standard output.
    pub fn run(&self, program: &str, arguments: &[&str]) -> String {
        succeed(&mut self.command(program, arguments))
    }

    /// Runs a command inside that may fail.
    pub fn attempt(&self, program: &str, arguments: &[&str]) -> Output {
        self.command(program, arguments).output().unwrap()
    }

    /// The value of a unit's property.
    pub fn property(&self, unit: &str, name: &str) -> String {
        self.run("systemctl", &["show", "--value", "-p", name, unit]).trim().to_owned()
    }

    /// Writes a file inside, with its folders.
    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let init = std::fs::read_to_string(self.dir.path().join("init.pid")).unwrap();
        let path = PathBuf::from(format!("/proc/{}/root{path}", init.trim()));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
}

impl Drop for Booted {
    fn drop(&mut self) {
        // A container that never came up has nothing to take down.
        let _ = Command::new(tool("nspawn-down.sh")).arg(self.dir.path()).output();
    }
}

/// A running podman container.
#[derive(Debug)]
pub struct Pod {
    name: String,
}

const IMAGE: &str = "localhost/tpuscope/base:test";
const STORE: [&str; 5] =
    ["--root", "/var/tmp/pod-store", "--runroot", "/var/tmp/pod-run", "--storage-driver=overlay"];

/// The image that the container root makes, built once by each test process.
pub fn base_image() -> &'static str {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        let context = TempDir::new().unwrap();
        let root = peer("rootfs.complete").with_file_name("rootfs");
        let tar = context.path().join("rootfs.tar");
        succeed(
            Command::new("tar")
                .arg("-C")
                .arg(root)
                .args(["--exclude=./dev/*", "--exclude=./proc/*", "--exclude=./sys/*", "-cf"])
                .arg(&tar)
                .arg("."),
        );
        std::fs::write(context.path().join("Containerfile"), "FROM scratch\nADD rootfs.tar /\n").unwrap();
        build(context.path(), &context.path().join("Containerfile"), IMAGE, &[]);
    });
    IMAGE
}

/// Builds an image from a Containerfile.
pub fn build(context: &Path, containerfile: &Path, tag: &str, arguments: &[String]) {
    let mut command = Command::new("buildah");
    command.args(STORE).args(["bud", "--isolation", "chroot", "-q", "-t", tag, "-f"]).arg(containerfile);
    for argument in arguments {
        command.arg("--build-arg").arg(argument);
    }
    succeed(command.arg(context));
}

fn podman() -> Command {
    Command::new(tool("pod.sh"))
}

impl Pod {
    /// Starts a container in the background; `options` go before the image.
    pub fn start(name: &str, options: &[&str], image: &str, arguments: &[&str]) -> Self {
        let name = format!("{name}-{}", std::process::id());
        let pod = Self { name };
        succeed(
            podman()
                .args([
                    "run",
                    "-d",
                    "--name",
                    &pod.name,
                    "--ulimit=nofile=1024:1024",
                    "--ulimit=nproc=1024:1024",
                ])
                .args(options)
                .arg(image)
                .args(arguments),
        );
        pod
    }

    /// Its name, for `--network=container:NAME`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs a command inside.
    pub fn exec(&self, arguments: &[&str]) -> Output {
        podman().args(["exec", &self.name]).args(arguments).output().unwrap()
    }

    /// Kills its main process (SIGKILL); nothing starts it again.
    pub fn kill(&self) {
        succeed(podman().args(["kill", "--signal", "KILL", &self.name]));
    }

    /// All it has printed, both streams.
    pub fn logs(&self) -> String {
        let output = podman().args(["logs", &self.name]).output().unwrap();
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    }

    /// A field of `podman inspect`.
    pub fn inspect(&self, format: &str) -> String {
        succeed(podman().args(["inspect", "--format", format, &self.name])).trim().to_owned()
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        // Nothing to do for one that is gone already.
        let _ = podman().args(["rm", "-f", "-t", "0", &self.name]).output();
    }
}
