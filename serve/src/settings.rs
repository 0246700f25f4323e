//! How texts are to be generated, as the parameters of OpenAI's API and some of llama-server and vLLM say it.

use crate::error::{ApiError, Result};
use crate::limits::{BIASES, LOG_PROBS, LOOK_BACK, SALT_BYTES, STOP_BYTES, STOPS, TEXTS};
use crate::params::{Params, is_nothing};
use outboard::{Constraint, Penalties, Request, Reuse, Sampler};
use serde_json::Value;
use std::sync::Arc;

/// Tokens that count for penalties if nothing is said, as in `outboard run`.
const LAST: usize = 64;

/// How texts are to be generated.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Texts for each prompt.
    pub(crate) n: usize,
    /// Most tokens of each.
    pub(crate) most: Option<usize>,
    pub(crate) stop: Vec<String>,
    /// How many of the most probable tokens come with each token and its log-probability; `None`: not even that.
    pub(crate) log_probs: Option<usize>,
    pub(crate) ignore_eos: bool,
    pub(crate) sampler: Sampler,
    pub(crate) penalties: Option<Penalties>,
    /// Added to logits.
    pub(crate) bias: Option<Arc<[f32]>>,
    /// Control tokens that are seen.
    pub(crate) shown: Arc<[u32]>,
    /// The form that they have.
    pub(crate) constraint: Option<Constraint>,
    /// What of the cache they begin with.
    pub(crate) reuse: Reuse,
    /// Whose texts they share beginnings with: those of the same salt.
    pub(crate) cache_salt: Option<String>,
}

impl Settings {
    /// What the APIs have in common: the defaults are those of OpenAI's. `stop` is the name of that parameter, `most_tokens` those of the most tokens.
    pub(crate) fn take(params: &mut Params, most_tokens: &[&str], stop: &str, least: i64) -> Result<Settings> {
        let mut most = None;
        for name in most_tokens {
            // llama-server's word for as many as there is room for.
            let unbounded = params.seen(name).and_then(Value::as_i64) == Some(-1);
            if unbounded {
                params.without_effect(&[name]);
            }
            most = params.count(name, least..=i64::from(i32::MAX))?.or(most);
        }
        take_other_samplers(params)?;
        let temperature = params.number("temperature", 0.0..=2.0)?.unwrap_or(1.0);
        let seed = seed(params)?;
        let reuse = match params.boolean("cache_prompt")? {
            Some(false) => Reuse::Nothing,
            // Who gives a seed wants the same text each time.
            None if seed.is_some() => Reuse::Prompts,
            Some(true) | None => Reuse::All,
        };
        let sampler = Sampler {
            temperature,
            top_k: params.count("top_k", -1..=i64::from(i32::MAX))?.unwrap_or(0),
            top_p: params.number("top_p", 0.0..=1.0)?.unwrap_or(1.0),
            min_p: params.number("min_p", 0.0..=1.0)?.unwrap_or(0.0),
            seed: seed.unwrap_or_else(|| rand::random::<u32>().into()),
        };
        let ignore_eos = params.boolean("ignore_eos")?.unwrap_or(false);
        let (stop, penalties) = (stops(params, stop)?, penalties(params)?);
        Ok(Settings {
            n: 1,
            most,
            stop,
            log_probs: None,
            ignore_eos,
            sampler,
            penalties,
            bias: None,
            shown: Arc::default(),
            constraint: None,
            reuse,
            cache_salt: take_cache_salt(params)?,
        })
    }

    /// Refuses more log-probabilities than an answer has that is made at once: of so many texts, each of at most `context` tokens.
    pub(crate) fn check_log_probs(&self, texts: usize, context: usize) -> Result<()> {
        let tokens = self.generated(context).saturating_mul(texts);
        self.check_log_probs_of(tokens, "ask for fewer tokens, or for a stream of completions or chats")
    }

    /// The same of so many tokens in all. `advice` says what to do about it.
    pub(crate) fn check_log_probs_of(&self, tokens: usize, advice: &str) -> Result<()> {
        let Some(top) = self.log_probs else { return Ok(()) };
        if tokens.saturating_mul(top + 1) <= LOG_PROBS {
            return Ok(());
        }
        let message = format!(
            "{tokens} tokens with {top} others each are more log-probabilities than an answer has ({LOG_PROBS}): {advice}"
        );
        Err(ApiError::of_param(if top > 0 { "top_logprobs" } else { "logprobs" }, message))
    }

    /// Tokens that a text has at most, of a context of so many.
    pub(crate) fn generated(&self, context: usize) -> usize {
        self.most.unwrap_or(context).min(context)
    }

    /// The request for the text with this number behind a prompt: each has another seed.
    pub(crate) fn request(&self, prompt: Vec<u32>, number: usize) -> Request {
        let sampler = Sampler { seed: self.sampler.seed.wrapping_add(number as u64), ..self.sampler };
        let mut request = Request::tokens(prompt).sampler(sampler).show(self.shown.clone()).reuse(self.reuse);
        if let Some(most) = self.most {
            request = request.max_tokens(most);
        }
        if let Some(penalties) = self.penalties {
            request = request.penalties(penalties);
        }
        if self.ignore_eos {
            request = request.ignore_eos();
        }
        match self.log_probs {
            None => {}
            Some(0) => request = request.log_probs(),
            Some(_) => request = request.top_log_probs(),
        }
        if let Some(bias) = &self.bias {
            request = request.bias(bias.clone());
        }
        if let Some(constraint) = &self.constraint {
            request = request.constraint(constraint.clone());
        }
        self.stop.iter().fold(request, |request, stop| request.stop(stop.as_str()))
    }
}

/// `cache_salt`, as vLLM has it: texts share beginnings with those of the same.
pub(crate) fn take_cache_salt(params: &mut Params) -> Result<Option<String>> {
    let salt = params.string("cache_salt")?;
    if salt.as_ref().is_some_and(|salt| salt.is_empty() || salt.len() > SALT_BYTES) {
        return Err(ApiError::of_param("cache_salt", format!("'cache_salt' has 1 to {SALT_BYTES} bytes")));
    }
    Ok(salt)
}

/// `n`, of which there may be so many.
pub(crate) fn take_n(params: &mut Params) -> Result<usize> {
    Ok(params.count("n", 1..=TEXTS as i64)?.unwrap_or(1))
}

/// `logit_bias`: numbers that are added to the logits of tokens, for a vocabulary of so many.
pub(crate) fn take_bias(params: &mut Params, n_vocab: usize) -> Result<Option<Arc<[f32]>>> {
    let Some(mut given) = params.object("logit_bias")? else { return Ok(None) };
    let names = given.names();
    if names.len() > BIASES {
        return Err(ApiError::of_param(
            "logit_bias",
            format!("'logit_bias' has at most {BIASES} tokens, not {}", names.len()),
        ));
    }
    let mut bias = vec![0.0; n_vocab];
    for name in &names {
        let id = name.parse::<usize>().ok().filter(|id| id.to_string() == *name);
        let token = id.and_then(|id| bias.get_mut(id));
        let wrong = || {
            let message = format!("'logit_bias' has tokens from 0 to {} as names", n_vocab.saturating_sub(1));
            ApiError::of_param("logit_bias", message)
        };
        *token.ok_or_else(wrong)? = given.number(name, -100.0..=100.0)?.unwrap_or(0.0);
    }
    // One of zeros would cost every step a vocabulary of them.
    Ok(bias.iter().any(|&bias| bias != 0.0).then(|| bias.into()))
}

/// Takes what other servers choose tokens by, where its value turns it off.
fn take_other_samplers(params: &mut Params) -> Result<()> {
    const OFF: [(&str, f64); 15] = [
        ("typical_p", 1.0),
        ("tfs_z", 1.0),
        ("mirostat", 0.0),
        ("dry_multiplier", 0.0),
        ("xtc_probability", 0.0),
        ("dynatemp_range", 0.0),
        ("top_n_sigma", -1.0),
        ("top_a", 0.0),
        ("length_penalty", 1.0),
        ("min_tokens", 0.0),
        ("min_keep", 0.0),
        ("n_probs", 0.0),
        ("n_keep", 0.0),
        ("n_discard", 0.0),
        ("n_indent", 0.0),
    ];
    const ONLY: [(&str, bool); 8] = [
        ("use_beam_search", false),
        ("skip_special_tokens", true),
        ("spaces_between_special_tokens", true),
        ("include_stop_str_in_output", false),
        ("timings_per_token", false),
        ("post_sampling_probs", false),
        ("return_tokens", false),
        ("return_progress", false),
    ];
    for (name, off) in OFF {
        let why = format!("there is nothing like it here; the only value is {off}");
        params.absent(name, &why, |value| value.as_f64() == Some(off))?;
    }
    for (name, only) in ONLY {
        let why = format!("there is nothing like it here; the only value is {only}");
        params.absent(name, &why, |value| *value == only)?;
    }
    params.absent("stop_token_ids", "texts end by 'stop'", is_nothing)?;
    params.absent("bad_words", "tokens are kept out by 'logit_bias'", is_nothing)?;
    params.absent("lora", "a model has its own weights alone", is_nothing)?;
    params.absent("response_fields", "an answer has all of them", is_nothing)?;
    // What tunes a sampler that is off, and what other servers are told about their slots and models.
    params.without_effect(&["dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"]);
    params.without_effect(&["mirostat_tau", "mirostat_eta", "xtc_threshold", "dynatemp_exponent"]);
    params.without_effect(&["id_slot", "keep_alive"]);
    Ok(())
}

/// `seed`, unless it is -1, llama-server's word for any.
fn seed(params: &mut Params) -> Result<Option<u64>> {
    let seed = params.integer("seed", i64::MIN..=i64::MAX)?;
    Ok(seed.filter(|&seed| seed != -1).map(i64::cast_unsigned))
}

fn stops(params: &mut Params, name: &str) -> Result<Vec<String>> {
    let stops = params.strings(name, STOPS)?;
    if let Some(wrong) = stops.iter().find(|stop| stop.is_empty() || stop.len() > STOP_BYTES) {
        let message = format!("a string of '{name}' has 1 to {STOP_BYTES} bytes, not {}", wrong.len());
        return Err(ApiError::of_param(params.name(name), message));
    }
    Ok(stops)
}

fn penalties(params: &mut Params) -> Result<Option<Penalties>> {
    // Two names for one thing, llama-server's and vLLM's.
    let repeat = params.number("repeat_penalty", 0.01..=100.0)?;
    let repeat = params.number("repetition_penalty", 0.01..=100.0)?.or(repeat).unwrap_or(1.0);
    let penalties = Penalties {
        last_n: match params.integer("repeat_last_n", -1..=LOOK_BACK)? {
            // As many as there may be.
            Some(-1) => LOOK_BACK as usize,
            last => last.and_then(|n| usize::try_from(n).ok()).unwrap_or(LAST),
        },
        repeat,
        frequency: params.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(0.0),
        presence: params.number("presence_penalty", -2.0..=2.0)?.unwrap_or(0.0),
    };
    let changes = penalties.repeat != 1.0 || penalties.frequency != 0.0 || penalties.presence != 0.0;
    Ok((changes && penalties.last_n > 0).then_some(penalties))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Result<Settings> {
        let mut params = Params::parse(text.as_bytes()).unwrap();
        let settings = Settings::take(&mut params, &["max_tokens", "max_completion_tokens"], "stop", 1)?;
        params.finish().map(|()| settings)
    }

    #[test]
    fn what_is_not_said_is_as_openai_has_it() {
        let s = settings("{}").unwrap();
        let Sampler { temperature, top_k, top_p, min_p, .. } = s.sampler;
        assert_eq!((temperature, top_k, top_p, min_p), (1.0, 0, 1.0, 0.0));
        assert!(s.most.is_none() && s.penalties.is_none() && s.stop.is_empty());
        assert_ne!(s.sampler.seed, settings("{}").unwrap().sampler.seed, "another one each time");
        assert_eq!(settings(r#"{"seed": -2}"#).unwrap().sampler.seed, u64::MAX - 1);
        let any = || settings(r#"{"seed": -1}"#).unwrap();
        assert_ne!(any().sampler.seed, any().sampler.seed);
        assert_eq!(settings(r#"{"max_tokens": 3, "max_completion_tokens": 5}"#).unwrap().most, Some(5));
        assert_eq!(settings(r#"{"top_k": -1}"#).unwrap().sampler.top_k, 0);
        for (text, reuse) in [
            ("{}", Reuse::All),
            (r#"{"seed": 1}"#, Reuse::Prompts),
            (r#"{"seed": null}"#, Reuse::All),
            (r#"{"seed": -1}"#, Reuse::All),
            (r#"{"cache_prompt": false}"#, Reuse::Nothing),
            (r#"{"cache_prompt": true, "seed": 1}"#, Reuse::All),
        ] {
            assert_eq!(settings(text).unwrap().reuse, reuse, "{text}");
        }
    }

    #[test]
    fn samplers_of_other_servers_may_be_off() {
        let off = settings(
            r#"{"mirostat": 0, "typical_p": 1.0, "top_n_sigma": -1, "dry_base": 1.75, "max_tokens": -1, "repeat_last_n": -1,
                "dry_sequence_breakers": ["\n"], "min_keep": 0, "timings_per_token": false, "lora": [], "spaces_between_special_tokens": true}"#,
        );
        assert_eq!(off.unwrap().most, None);
        assert!(settings(&serde_json::json!({"cache_salt": "x".repeat(257)}).to_string()).is_err());
        for on in [r#"{"mirostat": 2}"#, r#"{"typical_p": 0.9}"#, r#"{"stop_token_ids": [3]}"#, r#"{"max_tokens": -2}"#]
        {
            assert!(settings(on).is_err(), "{on}");
        }
    }

    #[test]
    fn numbers_are_within_their_ranges() {
        for text in [
            r#"{"temperature": -0.1}"#,
            r#"{"temperature": 2.1}"#,
            r#"{"top_p": 1.01}"#,
            r#"{"min_p": -1}"#,
            r#"{"max_tokens": 0}"#,
            r#"{"repeat_penalty": 0}"#,
            r#"{"presence_penalty": 3}"#,
            r#"{"stop": ""}"#,
            r#"{"stop": ["a", 1]}"#,
            r#"{"stop": ["1","2","3","4","5","6","7","8","9","a","b","c","d","e","f","g","h"]}"#,
            r#"{"seed": 1.5}"#,
            r#"{"top_k": 1e30}"#,
        ] {
            assert!(settings(text).is_err(), "{text}");
        }
        let p = settings(r#"{"frequency_penalty": 0.5, "repetition_penalty": 1.1}"#).unwrap().penalties.unwrap();
        assert_eq!((p.last_n, p.repeat, p.frequency, p.presence), (64, 1.1, 0.5, 0.0));
    }
}
