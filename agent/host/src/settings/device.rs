//! Section `[device]`: chips that this release does not know by name.

use std::path::PathBuf;

use documented::{Documented, DocumentedFields};
use model::absolute_path;
use serde::{Deserialize, Deserializer, Serialize, de::Error};

/// Chip types in addition to the built-in table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Additional chip types, each with its own `device` id. A type with an id of the built-in table replaces that entry.
    pub extra: Vec<ExtraChip>,
    /// Path of the file that says how many chips this host has: `CHIPS_PER_HOST_BOUNDS`, else `MACHINE_TYPE`, else
    /// `ACCELERATOR_TYPE` where that is a type of one host, each also with the prefix `TPU_`. It is read when it belongs to root or to the agent's user and no other user can write it. Without it, the most chips seen since
    /// the start are expected. The log says which. The agent must see the file: in a container, mount it and name its path here.
    #[serde(deserialize_with = "absolute_path::or_empty")]
    pub tpu_env: PathBuf,
}

impl Default for Settings {
    fn default() -> Self {
        Self { extra: Vec::new(), tpu_env: "/tmp/tpu-env".into() }
    }
}

/// A chip that a newer host may have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtraChip {
    /// Its PCI device id (the vendor is Google's), such as `0x0099`.
    pub device: u16,
    /// Its name, such as `v9`.
    #[serde(deserialize_with = "name")]
    pub name: String,
    /// The kind of its device nodes.
    pub node: NodeKind,
    /// JAX devices on one chip.
    #[serde(default, deserialize_with = "optional_count")]
    pub cores: Option<u32>,
    /// PCI functions of one chip.
    #[serde(default = "one", deserialize_with = "count")]
    pub functions: u32,
    /// HBM of one chip, GiB.
    #[serde(default, deserialize_with = "hbm")]
    pub hbm_gib: Option<u32>,
}

/// How a chip appears below `/dev`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeKind {
    /// `/dev/accelN`.
    Accel,
    /// `/dev/vfio/GROUP`, GROUP being the IOMMU group of the PCI function.
    Vfio,
}

fn one() -> u32 {
    1
}

/// The largest number of cores or functions of one chip.
const MAX_PARTS: u32 = 64;
/// The largest HBM of one chip in GiB.
const MAX_HBM_GIB: u32 = 65_536;
/// The longest name of a chip. It is a label of metrics.
const MAX_NAME: usize = 64;

fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = String::deserialize(deserializer)?;
    let printable = name.chars().any(|c| !c.is_whitespace()) && !name.chars().any(char::is_control);
    if printable && name.len() <= MAX_NAME {
        return Ok(name);
    }
    let shown: String = name.chars().take(MAX_NAME).collect();
    Err(D::Error::custom(format_args!(
        "`name` is `{}`: expected a text of 1 to {MAX_NAME} bytes, such as `v9`",
        shown.escape_debug()
    )))
}

fn from_one_to<'de, D: Deserializer<'de>>(largest: u32, deserializer: D) -> Result<u32, D::Error> {
    let number = u32::deserialize(deserializer)?;
    if (1..=largest).contains(&number) {
        return Ok(number);
    }
    Err(D::Error::custom(format_args!("got {number}: expected 1 to {largest}")))
}

fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    from_one_to(MAX_PARTS, deserializer)
}

fn optional_count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    count(deserializer).map(Some)
}

fn hbm<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    from_one_to(MAX_HBM_GIB, deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_additional_chip_has_a_name_and_at_least_one_of_each_part() {
        let read = |fields: &str| {
            toml::from_str::<Settings>(&format!("extra = [{{ device = 0x99, node = 'vfio', {fields} }}]"))
                .map_err(|error| error.message().to_owned())
        };
        let chip = read("name = 'v9', cores = 64, functions = 1, hbm_gib = 1").unwrap().extra.remove(0);
        assert_eq!((chip.cores, chip.functions, chip.hbm_gib), (Some(64), 1, Some(1)));
        assert_eq!(read("name = 'v9'").unwrap().extra[0].cores, None);
        let long = format!("name = '{}'", "x".repeat(MAX_NAME + 1));
        for bad in ["name = ''", "name = ' '", "name = \"a\\nb\"", &long] {
            assert!(read(bad).unwrap_err().contains("expected a text of 1 to 64 bytes"), "{bad}");
        }
        for bad in ["cores = 0", "cores = 65", "functions = 0"] {
            let error = read(&format!("name = 'v9', {bad}")).unwrap_err();
            assert!(error.contains("expected 1 to 64"), "{error}");
        }
        assert!(read("name = 'v9', hbm_gib = 0").unwrap_err().contains("expected 1 to 65536"));
    }
}
