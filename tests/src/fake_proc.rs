//! A procfs in a folder, for what a test cannot have for real: other pid namespaces, cgroups of Slurm and Kubernetes,
//! libraries of another container.

use std::{
    fmt::Write,
    fs,
    net::SocketAddr,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// One process; files that are not set are missing, as for one that may not be read.
#[derive(Debug, Clone)]
pub struct FakeProcess {
    pid: u32,
    parent: u32,
    start_ticks: u64,
    address_space: u64,
    uid: u32,
    ns_pids: Vec<u32>,
    files: Vec<(String, Vec<u8>)>,
    links: Vec<(String, String)>,
}

impl FakeProcess {
    /// A child of init that started `start_ticks` after boot, with our own pid and network namespaces.
    pub fn new(pid: u32, start_ticks: u64) -> Self {
        let namespace = |name: &str| {
            let target = fs::read_link(format!("/proc/self/{name}")).expect("our own namespace");
            (name.to_owned(), target.to_string_lossy().into_owned())
        };
        Self {
            pid,
            parent: 1,
            start_ticks,
            address_space: 1 << 30,
            uid: 1000,
            ns_pids: vec![pid],
            files: vec![("comm".into(), b"python3\n".to_vec())],
            links: vec![namespace("ns/pid"), namespace("ns/net")],
        }
    }

    /// Its pid in each namespace, from the outermost in.
    #[must_use]
    pub fn ns_pids(mut self, pids: &[u32]) -> Self {
        self.ns_pids = pids.to_vec();
        self
    }

    /// Its parent.
    #[must_use]
    pub fn parent(mut self, pid: u32) -> Self {
        self.parent = pid;
        self
    }

    /// A descriptor's link target.
    #[must_use]
    pub fn descriptor(self, number: u32, target: &str) -> Self {
        self.link(&format!("fd/{number}"), target)
    }

    /// A link, such as `ns/net`.
    #[must_use]
    pub fn link(mut self, name: &str, target: &str) -> Self {
        self.links.retain(|(other, _)| other != name);
        self.links.push((name.to_owned(), target.to_owned()));
        self
    }

    /// Its environment.
    #[must_use]
    pub fn environment(self, variables: &[(&str, &str)]) -> Self {
        let mut text = Vec::new();
        for (name, value) in variables {
            text.extend_from_slice(format!("{name}={value}\0").as_bytes());
        }
        self.file("environ", text)
    }

    /// A file below its folder.
    #[must_use]
    pub fn file(mut self, name: &str, content: impl AsRef<[u8]>) -> Self {
        self.files.retain(|(other, _)| other != name);
        self.files.push((name.to_owned(), content.as_ref().to_vec()));
        self
    }

    /// Its memory map names these libraries.
    #[must_use]
    pub fn maps(self, libraries: &[&str]) -> Self {
        let mut text =
            String::from("7ffe0000-7fff0000 rw-p 00000000 00:00 0                          [stack]\n");
        for library in libraries {
            writeln!(
                text,
                "7f0000000000-7f0000001000 r-xp 00000000 fe:01 77                         {library}"
            )
            .expect("a String takes all");
        }
        self.file("maps", text)
    }

    /// Listeners of its network namespace: address, uid, inode.
    #[must_use]
    pub fn listeners(self, listeners: &[(&str, u32, u64)]) -> Self {
        let heading = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";
        let (mut v4, mut v6) = (heading.to_owned(), heading.to_owned());
        for (address, uid, inode) in listeners {
            let address: SocketAddr = address.parse().expect("an address");
            let words = |octets: &[u8]| {
                octets
                    .chunks(4)
                    .map(|word| format!("{:08X}", u32::from_ne_bytes(word.try_into().unwrap())))
                    .collect::<String>()
            };
            let (table, ip) = match address.ip() {
                std::net::IpAddr::V4(ip) => (&mut v4, words(&ip.octets())),
                std::net::IpAddr::V6(ip) => (&mut v6, words(&ip.octets())),
            };
            let zero = "0".repeat(ip.len());
            writeln!(
                table,
                "   0: {ip}:{:04X} {zero}:0000 0A 00000000:00000000 00:00000000 00000000 {uid:5}        0 {inode} 1 0 100 0 0 10 0",
                address.port()
            )
            .expect("a String takes all");
        }
        self.file("net/tcp", v4).file("net/tcp6", v6)
    }

    /// Writes it below `procfs`.
    ///
    /// # Panics
    /// If the folder cannot be written.
    pub fn write(&self, procfs: &Path) -> PathBuf {
        let folder = procfs.join(self.pid.to_string());
        // proc(5), stat: fields 3 to 52.
        let mut stat = format!("{} (python3 (x)) S {}", self.pid, self.parent);
        for field in 5..=52 {
            let value = match field {
                22 => self.start_ticks,
                23 => self.address_space,
                50 => 0x7ffe_0000,
                _ => 0,
            };
            write!(stat, " {value}").expect("a String takes all");
        }
        let pids: Vec<String> = self.ns_pids.iter().map(u32::to_string).collect();
        let uid = self.uid;
        let status = format!(
            "Name:\tpython3\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t{}\n",
            pids.join("\t")
        );
        let own = [("stat".to_owned(), stat.into_bytes()), ("status".to_owned(), status.into_bytes())];
        fs::create_dir_all(folder.join("fd")).expect("a folder");
        for (name, content) in self.files.iter().chain(&own) {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().expect("below the folder")).expect("a folder");
            fs::write(path, content).expect("a file");
        }
        for (name, target) in &self.links {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().expect("below the folder")).expect("a folder");
            // A later version of the process replaces the earlier.
            let _ = fs::remove_file(&path);
            symlink(target, path).expect("a link");
        }
        folder
    }
}
