//! The models of a service, and which of them a request means.

use crate::engine::Engine;
use crate::error::{ApiError, Result};
use crate::metrics::Metrics;
use crate::options::ServeOptions;
use crate::params::Params;
use crate::service::Service;
use http::StatusCode;
use outboard::{Error, Runner};
use std::collections::HashSet;
use std::sync::Arc;

/// Characters of a wrong name that are told.
const SHOWN: usize = 100;

/// A model of a service: what generates its texts, which should have no other users, and its names, the first of which is what clients are told. Without a
/// name it has that of its file, without `.gguf`.
#[derive(Debug)]
pub struct ServedModel {
    /// What generates its texts.
    pub runner: Runner,
    /// Its names.
    pub names: Vec<String>,
}

impl ServedModel {
    /// Its names, of which there is one at least.
    fn named(self) -> ServedModel {
        let ServedModel { runner, mut names } = self;
        if names.is_empty() {
            let stem = runner.model().path().file_stem().map(|stem| stem.to_string_lossy().into_owned());
            names.push(stem.unwrap_or_else(|| "model".into()));
        }
        ServedModel { runner, names }
    }
}

/// The name that clients are told.
fn told(names: &[String]) -> &str {
    names.first().map_or("model", String::as_str)
}

/// One of them, with places and a queue of its own.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) engine: Arc<Engine>,
    pub(crate) names: Vec<String>,
}

impl Named {
    pub(crate) fn name(&self) -> &str {
        told(&self.names)
    }
}

/// All of them, and what is counted of them. Fails with [`Error::Request`] if there are none, or two have the same name.
pub(crate) fn named(models: Vec<ServedModel>, options: &ServeOptions) -> outboard::Result<(Vec<Arc<Named>>, Metrics)> {
    let models: Vec<ServedModel> = models.into_iter().map(ServedModel::named).collect();
    if models.is_empty() {
        return Err(Error::Request("there is no model to serve".into()));
    }
    let mut known = HashSet::new();
    if let Some(twice) = models.iter().flat_map(|model| &model.names).find(|name| !known.insert(name.as_str())) {
        return Err(Error::Request(format!("two models are called '{twice}': give each a name of its own")));
    }
    let names: Vec<&str> = models.iter().map(|model| told(&model.names)).collect();
    let (metrics, each) = Metrics::new(&names);
    let named = |(ServedModel { runner, names }, metrics)| {
        let engine = Arc::new(Engine::new(runner, options, metrics));
        Arc::new(Named { engine, names })
    };
    Ok((models.into_iter().zip(each).map(named).collect(), metrics))
}

impl Service {
    /// The same service for the model that a request means; it takes `model`, without which that is the first one.
    pub(crate) fn of(&self, params: &mut Params) -> Result<Service> {
        self.of_name(params.string("model")?.as_deref())
    }

    /// The same for a name.
    pub(crate) fn of_name(&self, asked: Option<&str>) -> Result<Service> {
        let Some(asked) = asked.filter(|asked| !asked.is_empty()) else { return Ok(self.clone()) };
        let models = self.models();
        let found = models.iter().find(|model| model.names.iter().any(|name| name == asked));
        let missing = || {
            let there: Vec<String> = models.iter().map(|model| format!("'{}'", model.name())).collect();
            let asked: String = asked.chars().take(SHOWN).collect();
            let verb = if there.len() == 1 { "is" } else { "are" };
            let message = format!("there is no model '{asked}' here; there {verb} {}", there.join(", "));
            ApiError::of_param("model", message).with_status(StatusCode::NOT_FOUND).with_code("model_not_found")
        };
        found.map(|model| self.with(model.clone())).ok_or_else(missing)
    }
}
