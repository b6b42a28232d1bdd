//! The NIC's registers, described once in `hw/registers.toml`: what the RTL, the driver and the documentation say of them is
//! written from there.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde::Deserialize;

use crate::Complaints;
use crate::chores::GoldenMode;
use crate::workspace::Workspace;

const SOURCE: &str = "hw/registers.toml";
/// Bytes of the address space.
const SPACE_BYTES: u32 = 0x800;
/// Bytes of a register.
const REGISTER_BYTES: u32 = 4;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RegisterFile {
    register: Vec<RegisterEntry>,
    counter: Vec<RegisterCounter>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RegisterEntry {
    name: String,
    offset: u32,
    access: RegisterAccess,
    array: Option<u32>,
    stride: Option<u32>,
    text: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RegisterAccess {
    Rw,
    Ro,
    Wo,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RegisterCounter {
    name: String,
    text: String,
}

impl RegisterEntry {
    fn count(&self) -> u32 {
        self.array.unwrap_or(1)
    }

    fn stride(&self) -> u32 {
        self.stride.unwrap_or(REGISTER_BYTES)
    }

    fn addresses(&self) -> impl Iterator<Item = u32> {
        (0..self.count()).map(|index| self.offset + index * self.stride())
    }
}

/// Compares what is written from the description with what it should be, or writes it anew.
pub(crate) fn check(workspace: &Workspace, golden: GoldenMode) -> Result<(), Complaints> {
    let text = std::fs::read_to_string(workspace.root.join(SOURCE))
        .map_err(|error| vec![format!("{SOURCE}: {error}")])?;
    let outputs = generate(&text)?;
    let mut complaints = Complaints::new();
    for (path, content) in outputs {
        let path_full = workspace.root.join(&path);
        if golden == GoldenMode::Bless {
            std::fs::write(&path_full, content)
                .map_err(|error| vec![format!("{}: {error}", path.display())])?;
        } else if std::fs::read_to_string(&path_full).unwrap_or_default() != content {
            complaints.push(format!(
                "{}: not what {SOURCE} says now; run `cargo xtask hw regs --bless` and read the diff",
                path.display()
            ));
        }
    }
    crate::none(complaints)
}

/// The files that follow from a description.
fn generate(text: &str) -> Result<[(PathBuf, String); 3], Complaints> {
    let description: RegisterFile =
        toml::from_str(text).map_err(|error| vec![format!("{SOURCE}: {error}")])?;
    crate::none(faults(&description))?;
    Ok([
        ("hw/rtl/nic_registers_pkg.sv".into(), verilog(&description)),
        ("crates/sys/nic/src/registers.rs".into(), rust(&description)),
        ("docs/nic-registers.md".into(), markdown(&description)),
    ])
}

/// Registers that overlap, are not aligned, or lie outside of the space.
fn faults(description: &RegisterFile) -> Complaints {
    let mut complaints = Complaints::new();
    let mut taken = std::collections::BTreeMap::new();
    for register in &description.register {
        for address in register.addresses() {
            if !address.is_multiple_of(REGISTER_BYTES) || address >= SPACE_BYTES {
                complaints.push(format!("{SOURCE}: {} is at {address:#x}", register.name));
            }
            if let Some(other) = taken.insert(address, &register.name) {
                complaints.push(format!(
                    "{SOURCE}: {} and {other} are both at {address:#x}",
                    register.name
                ));
            }
        }
    }
    let counters = description
        .register
        .iter()
        .find(|register| register.name == "COUNTER");
    if counters.is_none_or(|counters| (counters.count() as usize) < description.counter.len()) {
        complaints.push(format!("{SOURCE}: more counters than registers for them"));
    }
    complaints
}

fn verilog(description: &RegisterFile) -> String {
    let mut out = String::from(
        "// Addresses of the NIC's registers, in bytes. Written from hw/registers.toml by `cargo xtask hw regs --bless`.\n\
         /* verilator lint_off UNUSEDPARAM */\npackage nic_registers_pkg;\n",
    );
    for register in &description.register {
        let _ = writeln!(
            out,
            "  localparam logic [15:0] {} = 16'h{:04x};",
            register.name, register.offset
        );
        if register.array.is_some() {
            let (name, count, stride) = (&register.name, register.count(), register.stride());
            let _ = writeln!(out, "  localparam int {name}_COUNT = {count};");
            let _ = writeln!(out, "  localparam int {name}_STRIDE = {stride};");
        }
    }
    for (index, counter) in description.counter.iter().enumerate() {
        let _ = writeln!(out, "  localparam int COUNT_{} = {index};", counter.name);
    }
    out.push_str("endpackage\n/* verilator lint_on UNUSEDPARAM */\n");
    out
}

fn rust(description: &RegisterFile) -> String {
    let mut out = String::from(
        "//! Addresses of the NIC's registers, in bytes. Written from `hw/registers.toml` by `cargo xtask hw regs --bless`.\n",
    );
    for register in &description.register {
        let _ = write!(out, "\n/// {}\n", register.text);
        let (name, offset) = (&register.name, register.offset);
        if register.array.is_some() {
            let (count, stride) = (register.count(), register.stride());
            let _ = writeln!(out, "#[must_use]");
            let _ = writeln!(out, "pub const fn {}(index: u16) -> u16 {{", name.to_lowercase());
            let _ = writeln!(out, "    {offset:#05x} + index * {stride:#x}");
            let _ = writeln!(out, "}}");
            let _ = writeln!(out, "\n/// How many of [`{}`] there are.", name.to_lowercase());
            let _ = writeln!(out, "pub const {name}_COUNT: u16 = {count};");
        } else {
            let _ = writeln!(out, "pub const {name}: u16 = {offset:#05x};");
        }
    }
    out.push_str("\n/// What the NIC counts, by the index of [`counter`].\n");
    out.push_str(
        "#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]\n#[repr(u16)]\npub enum CounterName {\n",
    );
    for (index, counter) in description.counter.iter().enumerate() {
        let _ = writeln!(
            out,
            "    /// {}\n    {} = {index},",
            counter.text,
            camel(&counter.name)
        );
    }
    out.push_str("}\n\nimpl CounterName {\n    /// All of them, in order.\n");
    let _ = writeln!(
        out,
        "    pub const ALL: [CounterName; {}] = [",
        description.counter.len()
    );
    for counter in &description.counter {
        let _ = writeln!(out, "        CounterName::{},", camel(&counter.name));
    }
    out.push_str("    ];\n}\n");
    out
}

fn markdown(description: &RegisterFile) -> String {
    let mut out = String::from(
        "# The NIC's registers\n\nWritten from `hw/registers.toml` by `cargo xtask hw regs --bless`. Every register has 32 bits; addresses \
         are in bytes.\nWhat they are for, [nic.md](nic.md) says.\n\n| address | name | access | meaning |\n|---|---|---|---|\n",
    );
    for register in &description.register {
        let access = match register.access {
            RegisterAccess::Rw => "read, write",
            RegisterAccess::Ro => "read",
            RegisterAccess::Wo => "write",
        };
        let place = match register.array {
            None => format!("0x{:03x}", register.offset),
            Some(count) => format!(
                "0x{:03x} + 0x{:x} n, n < {count}",
                register.offset,
                register.stride()
            ),
        };
        let _ = writeln!(
            out,
            "| {place} | {} | {access} | {} |",
            register.name, register.text
        );
    }
    out.push_str("\n## Counters\n\n| n | name | counts |\n|---|---|---|\n");
    for (index, counter) in description.counter.iter().enumerate() {
        let _ = writeln!(out, "| {index} | {} | {} |", counter.name, counter.text);
    }
    out
}

fn camel(name: &str) -> String {
    let word = |word: &str| word[..1].to_string() + &word[1..].to_lowercase();
    name.split('_').map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_from_the_description_is_fresh() {
        let workspace = Workspace::load().unwrap();
        assert_eq!(check(&workspace, GoldenMode::Check), Ok(()));
    }

    #[test]
    fn registers_that_overlap_are_complaints() {
        let register =
            |name, offset| format!("[[register]]\nname='{name}'\noffset={offset}\naccess='rw'\ntext=''\n");
        let counters = "[[register]]\nname='COUNTER'\noffset=64\naccess='ro'\narray=2\ntext=''\n[[counter]]\nname='A_B'\ntext=''\n";
        let good = [register("A", 0), register("B", 4), counters.into()].concat();
        assert!(generate(&good).is_ok());
        for offset in [0, 2, 0x800, 64] {
            let bad = [register("A", 0), register("B", offset), counters.into()].concat();
            assert!(generate(&bad).is_err(), "{offset}");
        }
    }
}
