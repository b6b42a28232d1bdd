//! Proofs of the RTL (`hw/formal/proofs.toml`) with yosys' SAT solver, and mutants of the RTL, each of which a proof must catch.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Deserialize;

use super::tools::{YosysProgram, rtl_files};
use crate::Complaints;
use crate::workspace::Workspace;

const SOURCE: &str = "hw/formal/proofs.toml";

/// How much is proved.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProofExtent {
    /// Everything, with all mutants.
    Full,
    /// What is quick, with one mutant each.
    Quick,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProofList {
    proof: Vec<ProofRun>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProofRun {
    name: String,
    says: String,
    sources: Vec<String>,
    way: ProofMethod,
    /// With several clocks: steps, in each of which any clock may rise or fall.
    cycles: u32,
    #[serde(default)]
    clocks: ProofClocks,
    #[serde(default)]
    quick: bool,
    /// What it proves of several things at once; each needs mutants of its own.
    #[serde(default)]
    parts: Vec<String>,
    mutant: Vec<MutantRun>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ProofMethod {
    Induction,
    Bounded,
}

/// The clocks of what is proved.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ProofClocks {
    #[default]
    One,
    /// Whose edges follow one another in any way.
    Several,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MutantRun {
    /// Which part of the proof is to catch it, if that has several.
    part: Option<String>,
    file: String,
    from: String,
    to: String,
}

impl MutantRun {
    /// Its part, to be said behind something.
    fn of_part(&self) -> String {
        self.part
            .as_ref()
            .map(|part| format!(", {part},"))
            .unwrap_or_default()
    }
}

impl ProofRun {
    /// Complaints about parts without mutants enough, and mutants of no part.
    fn mutants_missing(&self) -> Complaints {
        let mut complaints = Complaints::new();
        let mut parts: Vec<Option<&str>> = self.parts.iter().map(|part| Some(part.as_str())).collect();
        if parts.is_empty() {
            parts.push(None);
        }
        for part in &parts {
            let count = self
                .mutant
                .iter()
                .filter(|mutant| mutant.part.as_deref() == *part)
                .count();
            if count < MUTANTS_MIN {
                let part = part.map(|part| format!(" of {part}")).unwrap_or_default();
                complaints.push(format!(
                    "{}: {count} mutants{part}; {MUTANTS_MIN} at least",
                    self.name
                ));
            }
        }
        let strays = self
            .mutant
            .iter()
            .filter(|mutant| !parts.contains(&mutant.part.as_deref()));
        complaints.extend(strays.map(|mutant| format!("{}: a mutant of no part: {}", self.name, mutant.to)));
        complaints
    }
}

/// What came of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProofOutcome {
    Proved,
    Refuted,
}

/// The mutants that a proof must catch at least, and each part of one that has several.
const MUTANTS_MIN: usize = 3;

/// Proves, and has the mutants caught.
pub(crate) fn prove(
    workspace: &Workspace,
    yosys: &YosysProgram,
    extent: ProofExtent,
    only: Option<&str>,
) -> Result<(), Complaints> {
    let mut complaints = Complaints::new();
    for proof in proofs(workspace)? {
        let wanted = extent == ProofExtent::Full || proof.quick;
        if !wanted || only.is_some_and(|only| only != proof.name) {
            continue;
        }
        complaints.extend(prove_one(workspace, yosys, &proof, extent)?);
    }
    crate::none(complaints)
}

fn proofs(workspace: &Workspace) -> Result<Vec<ProofRun>, Complaints> {
    let text = read(&workspace.root.join(SOURCE))?;
    let proofs: ProofList = toml::from_str(&text).map_err(|error| vec![format!("{SOURCE}: {error}")])?;
    Ok(proofs.proof)
}

fn prove_one(
    workspace: &Workspace,
    yosys: &YosysProgram,
    proof: &ProofRun,
    extent: ProofExtent,
) -> Result<Complaints, Complaints> {
    let rtl = workspace.root.join("hw/rtl");
    let began = Instant::now();
    let outcome = run(workspace, yosys, proof, &rtl)?;
    let bound = match proof.way {
        ProofMethod::Induction => "for any number of cycles".to_string(),
        ProofMethod::Bounded if proof.clocks == ProofClocks::Several => {
            format!(
                "for {} steps, in each of which any clock rises or falls",
                proof.cycles
            )
        }
        ProofMethod::Bounded => format!("for {} cycles after the reset", proof.cycles),
    };
    let seconds = began.elapsed().as_secs();
    if outcome == ProofOutcome::Refuted {
        return Ok(vec![format!(
            "{}: refuted: {} ({seconds} s)",
            proof.name, proof.says
        )]);
    }
    eprintln!("{}: proved {bound}: {} ({seconds} s)", proof.name, proof.says);
    let mut complaints = proof.mutants_missing();
    let count = if extent == ProofExtent::Quick {
        1
    } else {
        proof.mutant.len()
    };
    for (index, mutant) in proof.mutant.iter().take(count).enumerate() {
        let began = Instant::now();
        let folder = mutated(workspace, proof, mutant, index)?;
        let outcome = run(workspace, yosys, proof, &folder)?;
        let seconds = began.elapsed().as_secs();
        match outcome {
            ProofOutcome::Refuted => eprintln!(
                "{}: mutant {index} of {}{} caught ({seconds} s)",
                proof.name,
                mutant.file,
                mutant.of_part()
            ),
            ProofOutcome::Proved => complaints.push(format!(
                "{}: mutant {index} of {} is not caught: {}",
                proof.name, mutant.file, mutant.to
            )),
        }
    }
    Ok(complaints)
}

/// The proof's RTL in a folder of its own, with the mutant's change.
fn mutated(
    workspace: &Workspace,
    proof: &ProofRun,
    mutant: &MutantRun,
    index: usize,
) -> Result<PathBuf, Complaints> {
    let rtl = workspace.root.join("hw/rtl");
    let folder = workspace
        .target
        .join("hw/mutants")
        .join(format!("{}-{index}", proof.name));
    std::fs::create_dir_all(&folder).map_err(|error| vec![format!("{}: {error}", folder.display())])?;
    for name in rtl_files(workspace)? {
        let mut text = read(&rtl.join(&name))?;
        if name == mutant.file {
            let places = text.matches(&mutant.from).count();
            if places != 1 {
                let complaint = format!(
                    "{}: mutant {index}: its text is {places} times in {name}",
                    proof.name
                );
                return Err(vec![complaint]);
            }
            text = text.replace(&mutant.from, &mutant.to);
        }
        std::fs::write(folder.join(&name), text).map_err(|error| vec![format!("{name}: {error}")])?;
    }
    Ok(folder)
}

fn run(
    workspace: &Workspace,
    yosys: &YosysProgram,
    proof: &ProofRun,
    rtl: &Path,
) -> Result<ProofOutcome, Complaints> {
    let relative = workspace.relative(rtl).display().to_string();
    let mut sources = vec![format!("{relative}/nic_pkg.sv")];
    sources.extend(proof.sources.iter().map(|name| format!("{relative}/{name}")));
    let top = format!("{}_proof", proof.name);
    sources.push(format!("hw/formal/{top}.sv"));
    let way = match proof.way {
        ProofMethod::Induction => "-tempinduct",
        ProofMethod::Bounded => "-tempinduct-baseonly",
    };
    let registers = match proof.clocks {
        ProofClocks::One => "async2sync",
        ProofClocks::Several => "clk2fflogic",
    };
    let script = format!(
        "read_verilog -sv -formal {}; prep -flatten -top {top}; memory_map; {registers}; chformal -lower; opt -full; \
         opt_clean; sat -verify -prove-asserts -set-assumes {way} -seq 1 -maxsteps {}",
        sources.join(" "),
        proof.cycles
    );
    let output = yosys.run(workspace, &script)?;
    if output.success {
        return Ok(ProofOutcome::Proved);
    }
    if output.log.contains("proof did fail!") {
        return Ok(ProofOutcome::Refuted);
    }
    Err(vec![format!("{}: yosys failed:\n{}", proof.name, output.tail())])
}

fn read(path: &Path) -> Result<String, Complaints> {
    std::fs::read_to_string(path).map_err(|error| vec![format!("{}: {error}", path.display())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_a_proof_has_mutants_of_its_own() {
        let mutant = |part: &str| MutantRun {
            part: Some(part.to_string()),
            file: String::new(),
            from: String::new(),
            to: "changed".to_string(),
        };
        let mut proof = ProofRun {
            name: "whole".to_string(),
            says: String::new(),
            sources: Vec::new(),
            way: ProofMethod::Bounded,
            cycles: 1,
            clocks: ProofClocks::One,
            quick: false,
            parts: ["credits", "orders"].map(String::from).into(),
            mutant: ["credits", "credits", "credits", "orders", "orders"]
                .map(mutant)
                .into(),
        };
        assert_eq!(
            proof.mutants_missing(),
            ["whole: 2 mutants of orders; 3 at least"]
        );
        proof.mutant.extend(["orders", "elsewhere"].map(mutant));
        assert_eq!(proof.mutants_missing(), ["whole: a mutant of no part: changed"]);
    }

    #[test]
    fn every_mutant_is_a_change_of_what_is_proved() {
        let workspace = Workspace::load().unwrap();
        for proof in proofs(&workspace).unwrap() {
            assert_eq!(proof.mutants_missing(), Complaints::new());
            for mutant in &proof.mutant {
                assert!(
                    proof.sources.contains(&mutant.file),
                    "{}: {}",
                    proof.name,
                    mutant.file
                );
                let text = read(&workspace.root.join("hw/rtl").join(&mutant.file)).unwrap();
                assert_eq!(
                    text.matches(&mutant.from).count(),
                    1,
                    "{}: {}",
                    proof.name,
                    mutant.from
                );
            }
        }
    }
}
