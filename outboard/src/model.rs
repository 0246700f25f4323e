//! A model: its file or files, and its tokenizer.

use crate::digests::Remembered;
use crate::error::{Error, Result};
use outboard_llm::chat::{ChatTemplate, GenerationPrompt, Message, Tool, Variables};
use outboard_llm::gguf::{Gguf, GgufError};
use outboard_llm::tokenizer::{Bos, SpecialText, Tokenizer};
use outboard_llm::{Constraint, Form, Vocabulary};
use outboard_system::open_mapped;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

/// A model whose file, or files, have been read and checked. Clones are the same model.
#[derive(Clone)]
pub struct Model {
    path: PathBuf,
    model: Arc<outboard_llm::Model>,
    tokenizer: Arc<Tokenizer>,
    /// Or why it has none that is usable.
    template: Arc<std::result::Result<ChatTemplate, outboard_llm::Error>>,
    digests: Option<Arc<Remembered>>,
    /// Made when somebody wants a text of a form.
    vocabulary: Arc<OnceLock<outboard_llm::Result<Arc<Vocabulary>>>>,
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("path", &self.path).field("model", &self.model).finish_non_exhaustive()
    }
}

impl Model {
    /// Maps a GGUF file, and those beside it that are of the same model, and reads the tokenizer.
    ///
    /// The file must not change while the model is used.
    pub fn open(path: impl AsRef<Path>) -> Result<Model> {
        let path = path.as_ref();
        let gguf = open_gguf(path)?;
        let wrong = |e| Error::of_model(path, e);
        let tokenizer = Tokenizer::from_gguf(&gguf).map_err(wrong)?;
        let template = Arc::new(ChatTemplate::from_gguf(&gguf, &tokenizer));
        let model = outboard_llm::Model::new(gguf).map_err(wrong)?;
        let (path, model, tokenizer) = (path.to_owned(), Arc::new(model), Arc::new(tokenizer));
        Ok(Model { path, model, tokenizer, template, digests: None, vocabulary: Arc::default() })
    }

    /// As [`Model::open`], and remembers in a folder the digests of the tensors that servers were asked for, so that the next time they can be
    /// asked without reading the file. A folder that cannot be used is no error.
    pub fn open_with_digests(path: impl AsRef<Path>, dir: impl Into<PathBuf>) -> Result<Model> {
        let opened = Model::open(path)?;
        let Some(digests) = Remembered::open(dir.into(), opened.model.gguf().paths()) else { return Ok(opened) };
        let Model { path, model, tokenizer, template, vocabulary, .. } = opened;
        // Nobody else has it yet.
        let model = Arc::into_inner(model).ok_or_else(|| Error::Bug("a model has two owners".into()))?;
        let model = Arc::new(model.with_digests(digests.load()));
        Ok(Model { path, model, tokenizer, template, digests: Some(Arc::new(digests)), vocabulary })
    }

    /// The file that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The model's own name, for people.
    pub fn name(&self) -> &str {
        self.model.name()
    }

    /// Tokens of the context that it was trained with.
    pub fn trained_context(&self) -> usize {
        self.model.hparams().n_ctx_train
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// What `outboard-llm` knows of it: the file's contents, numbers, graphs.
    pub fn inner(&self) -> &Arc<outboard_llm::Model> {
        &self.model
    }

    pub(crate) fn digests(&self) -> Option<&Remembered> {
        self.digests.as_deref()
    }

    /// The tokens of a prompt, special ones among them. An empty prompt is what texts begin with.
    pub fn encode(&self, prompt: &str) -> Result<Vec<u32>> {
        let mut tokens = self.tokenizer.encode(prompt, SpecialText::Parse, Bos::Add)?;
        if tokens.is_empty() {
            let start = self.tokenizer.bos().or(self.tokenizer.eos());
            let none = || Error::Request("the prompt is empty and the model has no token to begin with".into());
            tokens.push(start.ok_or_else(none)?);
        }
        Ok(tokens)
    }

    /// What makes prompts of chats. Fails if the file has none, or one that is not usable.
    pub fn template(&self) -> Result<&ChatTemplate> {
        self.template.as_ref().as_ref().map_err(|e| Error::of_model(&self.path, e.clone()))
    }

    /// Compiles a form that texts are to have, for [`Request::constraint`](crate::Request::constraint). It may take long: the first time a second for a
    /// large vocabulary, and each time up to seconds for a large form. Fails with [`Error::Request`], which says what is wrong with the form.
    pub fn constraint(&self, form: &Form) -> Result<Constraint> {
        let vocabulary = self.vocabulary.get_or_init(|| Vocabulary::new(&self.tokenizer).map(Arc::new));
        let vocabulary = vocabulary.as_ref().map_err(|e| Error::of_model(&self.path, e.clone()))?;
        Ok(vocabulary.constraint(form)?)
    }

    /// The prompt of a chat, in the words that the model was trained with: for [`Model::encode`].
    pub fn chat(&self, messages: &[Message]) -> Result<String> {
        self.chat_with(messages, &[], &Variables::new())
    }

    /// The same with tools that the model may call, and variables of its template. One that knows of none leaves them out:
    /// [`ChatTemplate::knows_tools`], [`ChatTemplate::has_variable`].
    pub fn chat_with(&self, messages: &[Message], tools: &[Tool], variables: &Variables) -> Result<String> {
        Ok(self.template()?.render_with(messages, tools, variables, GenerationPrompt::Add, SystemTime::now())?)
    }
}

/// Maps and checks a GGUF file, and those beside it that are of the same model.
pub fn open_gguf(path: &Path) -> Result<Gguf> {
    let mut kind = io::ErrorKind::Other;
    let opened = Gguf::open(path, |file| open_mapped(file).inspect_err(|e| kind = e.kind()));
    opened.map_err(|e| match e {
        GgufError::File { path, why } if matches!(*why, GgufError::Unreadable(_)) => {
            Error::Io { path, kind, detail: why.to_string() }
        }
        e => Error::of_gguf(path, e),
    })
}
