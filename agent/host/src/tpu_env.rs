//! The number of chips of this host as its `tpu-env` file states it: lines such as `CHIPS_PER_HOST_BOUNDS: '2,2,1'`.
//!
//! No I/O. Must never derive a number from a value that leaves it open, such as the type of a slice of several hosts.

use model::untrusted::clean;

/// A host that states more chips is refused.
pub const MAX_CHIPS: u32 = 256;
/// The chips of a host as a grid, such as `2,2,1`.
const BOUNDS: [&str; 2] = ["CHIPS_PER_HOST_BOUNDS", "TPU_CHIPS_PER_HOST_BOUNDS"];
/// The machine type of Compute Engine, such as `ct6e-standard-4t`: it ends with the number of chips.
const MACHINE: [&str; 2] = ["MACHINE_TYPE", "TPU_MACHINE_TYPE"];
/// The type of the slice, such as `v6e-8`.
const ACCELERATOR: [&str; 2] = ["ACCELERATOR_TYPE", "TPU_ACCELERATOR_TYPE"];
/// The hosts of the slice as a grid.
const HOSTS: [&str; 2] = ["HOST_BOUNDS", "TPU_HOST_BOUNDS"];
/// Machine types with chips begin like this.
const MACHINE_PREFIXES: [&str; 2] = ["ct", "tpu"];
/// Longest value in a text for a person.
const SHOWN: usize = 60;

/// The number of chips of this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatedChips {
    /// The number: 1 to [`MAX_CHIPS`].
    pub chips: u32,
    /// The key of the line that states it.
    pub key: &'static str,
}

/// Why a text does not state the number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TpuEnvError {
    /// None of the keys is there.
    #[error("has no CHIPS_PER_HOST_BOUNDS, MACHINE_TYPE or ACCELERATOR_TYPE, also not with the prefix TPU_")]
    NoKey,
    /// The grid of chips is malformed.
    #[error(
        "has the value `{value}` for {key}: expected a grid of at most {MAX_CHIPS} chips, such as `2,2,1`"
    )]
    Bounds {
        /// Key of the line.
        key: &'static str,
        /// Value of the line, shortened.
        value: String,
    },
    /// The types that are there do not say how many chips one host has.
    #[error("has no CHIPS_PER_HOST_BOUNDS, and {key} `{value}` does not state how many chips one host has")]
    Type {
        /// Key of the line.
        key: &'static str,
        /// Value of the line, shortened.
        value: String,
    },
}

/// Reads a text: from the grid of chips, else from the machine type, else from the type of the slice.
///
/// # Errors
/// Why it does not state the number.
pub fn stated_chips(text: &str) -> Result<StatedChips, TpuEnvError> {
    if let Some((key, value)) = value_of(text, &BOUNDS) {
        let chips = grid(value).filter(|chips| (1..=MAX_CHIPS).contains(chips));
        let chips = chips.ok_or_else(|| TpuEnvError::Bounds { key, value: clean(value, SHOWN) })?;
        return Ok(StatedChips { chips, key });
    }
    let machine = value_of(text, &MACHINE);
    if let Some((key, value)) = machine
        && let Some(chips) = chips_of_machine(value)
    {
        return Ok(StatedChips { chips, key });
    }
    let accelerator = value_of(text, &ACCELERATOR);
    // Without the grid of hosts, a type that has always been one host is one.
    let has_one_host = value_of(text, &HOSTS).is_none_or(|(_, hosts)| grid(hosts) == Some(1));
    if let Some((key, value)) = accelerator
        && let Some(chips) = chips_of_accelerator(value, has_one_host)
    {
        return Ok(StatedChips { chips, key });
    }
    let (key, value) = accelerator.or(machine).ok_or(TpuEnvError::NoKey)?;
    Err(TpuEnvError::Type { key, value: clean(value, SHOWN) })
}

/// The first of the keys with a value, without its quotes.
fn value_of<'a>(text: &'a str, keys: &[&'static str; 2]) -> Option<(&'static str, &'a str)> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let key = keys.iter().find(|key| **key == name.trim())?;
        let value = value.trim().trim_matches(['\'', '"']).trim();
        (!value.is_empty()).then_some((*key, value))
    })
}

/// The product of the sides of a grid such as `2,2,1`.
fn grid(value: &str) -> Option<u32> {
    value.split(',').map(|side| side.trim().parse::<u32>().ok()).reduce(|a, b| a?.checked_mul(b?))?
}

/// `ct6e-standard-4t`, also as the last part of a path: 4.
fn chips_of_machine(value: &str) -> Option<u32> {
    let name = value.rsplit('/').next()?;
    let is_tpu = MACHINE_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let (_, size) = name.rsplit_once('-').filter(|_| is_tpu)?;
    let chips = size.strip_suffix('t')?.parse().ok()?;
    (1..=MAX_CHIPS).contains(&chips).then_some(chips)
}

/// `v6e-8` of one host: 8. The number in the type of v2, v3, v4 and v5p counts cores, and their hosts have 4 chips in every
/// slice. The number in that of v5e and v6e counts chips: up to 8 they are on one host, above it depends on the machine type.
fn chips_of_accelerator(value: &str, has_one_host: bool) -> Option<u32> {
    let (generation, size) = value.rsplit_once('-')?;
    let size: u32 = size.parse().ok()?;
    match generation {
        "v2" | "v3" | "v4" | "v5p" => (size > 0 && size.is_multiple_of(8)).then_some(4),
        "v5litepod" | "v6e" => (has_one_host && [1, 4, 8].contains(&size)).then_some(size),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chips(text: &str) -> Option<u32> {
        stated_chips(text).ok().map(|stated| stated.chips)
    }

    #[test]
    fn the_chips_of_a_host_are_a_grid() {
        assert_eq!(
            stated_chips(
                "ACCELERATOR_TYPE: 'v4-256'\nCHIPS_PER_HOST_BOUNDS: '2,2,1'\nHOST_BOUNDS: '2,2,8'\n"
            ),
            Ok(StatedChips { chips: 4, key: "CHIPS_PER_HOST_BOUNDS" })
        );
        assert_eq!(chips("TPU_CHIPS_PER_HOST_BOUNDS: '1,1,1'\n"), Some(1));
        assert_eq!(chips("CHIPS_PER_HOST_BOUNDS: \"2, 4\"\n"), Some(8));
        // As Compute Engine writes it for a v6e-1: eight ports, one chip.
        let compute_engine = "TPU_WORKER_ID: '0'\nTPU_ACCELERATOR_TYPE: 'v6e-1'\nTOPOLOGY: '1x1'\nHOST_BOUNDS: '1,1,1'\n\
                              CHIPS_PER_HOST_BOUNDS: '1,1,1'\n\
                              TPU_RUNTIME_METRICS_PORTS: '8431,8432,8433,8434,8435,8436,8437,8438'\n";
        assert_eq!(chips(compute_engine), Some(1));
        for bad in ["0,1,1", "65536,65536", "257", "2,x,1", ",", "-1"] {
            // A wrong grid is said to be wrong, and not replaced by a type.
            let text = format!("CHIPS_PER_HOST_BOUNDS: '{bad}'\nACCELERATOR_TYPE: 'v6e-8'\n");
            let want = TpuEnvError::Bounds { key: "CHIPS_PER_HOST_BOUNDS", value: bad.into() };
            assert_eq!(stated_chips(&text), Err(want));
        }
        for none in ["", "HOST_BOUNDS: '2,2,8'\n", "CHIPS_PER_HOST_BOUNDS: ''", "CHIPS_PER_HOST_BOUNDS"] {
            assert_eq!(stated_chips(none), Err(TpuEnvError::NoKey), "{none}");
        }
    }

    #[test]
    fn a_type_of_one_host_states_its_chips() {
        let of = |accelerator: &str, rest: &str| chips(&format!("ACCELERATOR_TYPE: '{accelerator}'\n{rest}"));
        for (accelerator, want) in [
            ("v6e-1", Some(1)),
            ("v6e-4", Some(4)),
            ("v6e-8", Some(8)),
            ("v5litepod-1", Some(1)),
            ("v5litepod-4", Some(4)),
            ("v5litepod-8", Some(8)),
            // Cores, at four chips a host.
            ("v2-8", Some(4)),
            ("v3-32", Some(4)),
            ("v4-256", Some(4)),
            ("v5p-8", Some(4)),
            // Four chips a host or eight.
            ("v6e-16", None),
            ("v5litepod-256", None),
            // No such type is known.
            ("v6e-2", None),
            ("v4-4", None),
            ("v4-0", None),
            ("v7x-16", None),
            ("v6e", None),
            ("v6e-x", None),
        ] {
            assert_eq!(of(accelerator, "WORKER_ID: '0'\n"), want, "{accelerator}");
        }
        assert_eq!(chips("TPU_WORKER_ID: '0'\nTPU_ACCELERATOR_TYPE: 'v6e-8'\n"), Some(8));
        // Two hosts with four chips each, as with the machine type ct6e-standard-4t.
        assert_eq!(of("v6e-8", "HOST_BOUNDS: '1,2,1'\n"), None);
        assert_eq!(of("v6e-8", "HOST_BOUNDS: '1,1,1'\n"), Some(8));
        let error = stated_chips("TPU_ACCELERATOR_TYPE: 'v6e-16'").unwrap_err().to_string();
        assert!(error.contains("TPU_ACCELERATOR_TYPE `v6e-16` does not state"), "{error}");
    }

    #[test]
    fn a_machine_type_counts_more_than_the_type_of_the_slice() {
        for (machine, want) in [
            ("ct6e-standard-4t", Some(4)),
            ("projects/1/machineTypes/ct5lp-hightpu-8t", Some(8)),
            ("tpu7x-standard-4t", Some(4)),
            // No TPU, or no number: the type of the slice is used.
            ("n2-standard-4t", Some(8)),
            ("ct6e-standard-0t", Some(8)),
            ("ct6e-standard-4", Some(8)),
        ] {
            let text = format!("MACHINE_TYPE: '{machine}'\nACCELERATOR_TYPE: 'v6e-8'\n");
            assert_eq!(chips(&text), want, "{machine}");
        }
        let error = stated_chips("MACHINE_TYPE: 'n2-standard-4'").unwrap_err().to_string();
        assert!(error.contains("MACHINE_TYPE `n2-standard-4` does not state"), "{error}");
    }
}
