//! `/proc/self/maps`: which addresses are code of which file.

use std::ops::Range;

/// One line of `/proc/<pid>/maps`.
#[derive(Debug, PartialEq, Eq)]
struct Mapping<'a> {
    range: Range<usize>,
    readable: bool,
    executable: bool,
    /// Device, inode and path: what tells one file from another.
    file: &'a str,
}

fn parse(line: &str) -> Option<Mapping<'_>> {
    let (range, rest) = line.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    let (access, rest) = rest.split_once(' ')?;
    let (_offset, file) = rest.split_once(' ')?;
    Some(Mapping {
        range: usize::from_str_radix(from, 16).ok()?..usize::from_str_radix(to, 16).ok()?,
        readable: access.starts_with('r'),
        executable: access.as_bytes().get(2) == Some(&b'x'),
        file,
    })
}

/// Code of one library, and all memory that can be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    code: Vec<Range<usize>>,
    readable: Vec<Range<usize>>,
}

impl Memory {
    /// Reads the text of a maps file; the library is the file that `inside` lies in.
    pub(crate) fn parse(maps: &str, inside: usize) -> Self {
        let all: Vec<_> = maps.lines().filter_map(parse).collect();
        let file = all.iter().find(|mapping| mapping.range.contains(&inside)).map(|mapping| mapping.file);
        Self {
            code: all
                .iter()
                .filter(|mapping| mapping.executable && Some(mapping.file) == file)
                .map(|mapping| mapping.range.clone())
                .collect(),
            readable: all
                .into_iter()
                .filter(|mapping| mapping.readable)
                .map(|mapping| mapping.range)
                .collect(),
        }
    }

    pub(crate) fn is_code(&self, address: usize) -> bool {
        self.code.iter().any(|range| range.contains(&address))
    }

    /// Whether a word can be read at `address`.
    pub(crate) fn is_readable(&self, address: usize) -> bool {
        let Some(last) = address.checked_add(size_of::<usize>() - 1) else { return false };
        [address, last].iter().all(|byte| self.readable.iter().any(|range| range.contains(byte)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-2000 r--p 00000000 fe:00 77 /opt/a b/libtpu.so
2000-3000 r-xp 00001000 fe:00 77 /opt/a b/libtpu.so
3000-4000 rw-p 00002000 fe:00 77 /opt/a b/libtpu.so
5000-6000 r-xp 00000000 fe:00 78 /usr/lib/libc.so.6
7000-8000 rw-p 00000000 00:00 0  [heap]
8000-9000 ---p 00000000 00:00 0
garbage
9000-a000 r-xp 00003000 fe:00 77 /opt/a b/libtpu.so
";

    #[test]
    fn code_of_the_library_alone_counts() {
        let memory = Memory::parse(MAPS, 0x2010);
        assert!(memory.is_code(0x2000) && memory.is_code(0x2fff) && memory.is_code(0x9000));
        for other in [0x1000, 0x3000, 0x5000, 0x7000, 0xa000, 0] {
            assert!(!memory.is_code(other), "{other:x}");
        }
    }

    #[test]
    fn words_are_readable_as_a_whole() {
        let memory = Memory::parse(MAPS, 0x2010);
        assert!(memory.is_readable(0x7ff8));
        assert!(!memory.is_readable(0x7ff9));
        assert!(!memory.is_readable(0x8000));
        assert!(!memory.is_readable(usize::MAX));
    }

    #[test]
    fn an_address_outside_every_file_has_no_code() {
        assert!(!Memory::parse(MAPS, 0xffff_0000).is_code(0x2000));
    }
}
