//! The calls of the XML API, each from a request whose body has arrived to its answer.

use std::{collections::BTreeMap, time::Instant};

use hyper::HeaderMap;
use jiff::Timestamp;

use super::{
    State,
    access::Refusal,
    buckets::{GcsObject, kept_headers},
    content::{RangeReader, Segment},
    listing,
    multipart::{MOST_PARTS, Multipart},
    replies::{
        GcsReply, ReplyBody, bad_list, error, escape, http_date, no_bucket, no_object, no_upload,
        precondition_failed, refused,
    },
};

/// The head of a storage call, decoded.
pub(super) struct StorageCall<'a> {
    pub(super) method: &'a str,
    pub(super) bucket: &'a str,
    /// Empty for calls to the bucket itself.
    pub(super) object: &'a str,
    pub(super) query: &'a BTreeMap<String, String>,
    pub(super) headers: &'a HeaderMap,
}

/// The body of a request.
pub(super) enum CallPayload {
    /// Bytes for an object.
    Segment(Segment),
    /// Everything else.
    Text(String),
}

type Answered = Result<GcsReply, GcsReply>;

impl From<Refusal> for GcsReply {
    fn from(refusal: Refusal) -> Self {
        refused(&refusal)
    }
}

impl StorageCall<'_> {
    /// Whether its body is content of an object.
    pub(super) fn carries_content(&self) -> bool {
        self.method == "PUT" && self.header("x-goog-copy-source").is_none()
    }

    /// Whether its body becomes an object by itself.
    pub(super) fn is_whole(&self) -> bool {
        !self.query.contains_key("uploadId")
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Answers it.
    pub(super) fn run(&self, state: &mut State, payload: CallPayload, now: Timestamp) -> GcsReply {
        self.answer(state, payload, now).unwrap_or_else(|refusal| refusal)
    }

    fn answer(&self, state: &mut State, payload: CallPayload, now: Timestamp) -> Answered {
        state.access.authenticate(self.header("authorization"), Instant::now())?;
        state.buckets.get(self.bucket).ok_or_else(no_bucket)?;
        if self.object.is_empty() {
            return self.list(state);
        }
        let upload = self.query.get("uploadId").map(String::as_str);
        match (self.method, payload, upload) {
            ("GET" | "HEAD", ..) => self.get(state),
            ("PUT", CallPayload::Segment(segment), None) => self.put(state, segment, now),
            ("PUT", CallPayload::Segment(segment), Some(upload)) => self.part(state, upload, segment),
            ("PUT", CallPayload::Text(_), _) => self.copy(state, now),
            ("POST", _, None) if self.query.contains_key("uploads") => self.start(state),
            ("POST", CallPayload::Text(list), Some(upload)) => self.complete(state, upload, &list, now),
            ("DELETE", _, None) => self.delete(state),
            ("DELETE", _, Some(upload)) => self.abort(state, upload),
            _ => Err(error(400, "InvalidArgument", "Invalid argument.", "unknown call")),
        }
    }

    fn list(&self, state: &State) -> Answered {
        state.access.authorize("storage.objects.list")?;
        if self.method != "GET" {
            return Err(error(
                400,
                "InvalidArgument",
                "Invalid argument.",
                "only lists of buckets are known",
            ));
        }
        let bucket = state.buckets.get(self.bucket).ok_or_else(no_bucket)?;
        Ok(GcsReply::new(200).xml(listing::list(self.bucket, bucket, self.query, state.page_size)))
    }

    fn find(&self, state: &State) -> Result<GcsObject, GcsReply> {
        let bucket = state.buckets.get(self.bucket).ok_or_else(no_bucket)?;
        let wanted = |object: &&GcsObject| {
            self.query.get("generation").is_none_or(|wanted| *wanted == object.generation.to_string())
        };
        let found = bucket.objects.get(self.object).filter(wanted);
        found.cloned().ok_or_else(|| no_object(self.bucket, self.object))
    }

    fn get(&self, state: &State) -> Answered {
        state.access.authorize("storage.objects.get")?;
        let object = self.find(state)?;
        if self.header("if-match").is_some_and(|etag| etag != object.etag) {
            return Err(precondition_failed("If-Match"));
        }
        if self.header("if-none-match").is_some_and(|etag| etag == object.etag) {
            return Err(GcsReply::new(304).header("etag", object.etag));
        }
        let is_head = self.method == "HEAD";
        let (from, length) = match self.header("range") {
            Some(range) => byte_range(range, object.size).ok_or_else(|| {
                error(416, "InvalidRange", "The requested range cannot be satisfied.", range)
                    .header("content-range", format!("bytes */{}", object.size))
            })?,
            None => (0, object.size),
        };
        let partial = self.header("range").is_some();
        let mut reply = GcsReply::new(if partial { 206 } else { 200 });
        if partial {
            let range = format!("bytes {from}-{}/{}", from + length - 1, object.size);
            reply = reply.header("content-range", range);
        }
        reply = reply
            .version(&object)
            .header("last-modified", http_date(object.updated))
            .header("accept-ranges", "bytes")
            .header("x-goog-stored-content-length", object.size.to_string())
            .hashes(&object, !is_head);
        for (name, value) in &object.headers {
            reply = reply.header(name, value.clone());
        }
        reply.body = match is_head {
            true => ReplyBody::Head(object.size),
            false => ReplyBody::Content(RangeReader::new(object.segments, from, length), length),
        };
        Ok(reply)
    }

    /// Checks `x-goog-if-generation-match`, and the permission to replace what is there.
    fn may_replace(&self, state: &State) -> Result<(), GcsReply> {
        let there = state.buckets.get(self.bucket).ok_or_else(no_bucket)?.objects.get(self.object);
        let generation = there.map_or(0, |object| object.generation);
        let wanted = self.header("x-goog-if-generation-match");
        if wanted.is_some_and(|wanted| wanted != generation.to_string()) {
            return Err(precondition_failed("x-goog-if-generation-match"));
        }
        if there.is_some() {
            state.access.authorize("storage.objects.delete")?;
        }
        Ok(())
    }

    fn store(&self, state: &mut State, object: GcsObject) {
        let bucket = state.buckets.get_mut(self.bucket).expect("checked for each call");
        bucket.objects.insert(self.object.to_owned(), object);
    }

    fn put(&self, state: &mut State, segment: Segment, now: Timestamp) -> Answered {
        state.access.authorize("storage.objects.create")?;
        self.may_replace(state)?;
        let object = state.buckets.finish(vec![segment], true, kept_headers(self.headers), now);
        let reply = GcsReply::new(200).version(&object).hashes(&object, true).committed();
        self.store(state, object);
        Ok(reply)
    }

    fn copy(&self, state: &mut State, now: Timestamp) -> Answered {
        state.access.authorize("storage.objects.get")?;
        state.access.authorize("storage.objects.create")?;
        let source = super::serve::percent_decode(self.header("x-goog-copy-source").unwrap_or_default());
        let (bucket, name) = source.trim_start_matches('/').split_once('/').unwrap_or((&source, ""));
        let from = state.buckets.get(bucket).ok_or_else(no_bucket)?.objects.get(name);
        let from = from.cloned().ok_or_else(|| no_object(bucket, name))?;
        self.may_replace(state)?;
        let whole = from.md5.is_some();
        let object = state.buckets.finish(from.segments, whole, from.headers, now);
        let xml = format!(
            "<?xml version='1.0' encoding='UTF-8'?><CopyObjectResult><LastModified>{now:.3}</LastModified>\
             <ETag>{}</ETag></CopyObjectResult>",
            escape(&object.etag)
        );
        let reply = GcsReply::new(200).version(&object).hashes(&object, true).xml(xml).committed();
        self.store(state, object);
        Ok(reply)
    }

    fn delete(&self, state: &mut State) -> Answered {
        state.access.authorize("storage.objects.delete")?;
        let object = self.find(state)?;
        let wanted = self.header("x-goog-if-generation-match");
        if wanted.is_some_and(|wanted| wanted != object.generation.to_string()) {
            return Err(precondition_failed("x-goog-if-generation-match"));
        }
        state.buckets.get_mut(self.bucket).expect("found in it").objects.remove(self.object);
        Ok(GcsReply::new(204).committed())
    }

    fn start(&self, state: &mut State) -> Answered {
        state.access.authorize("storage.objects.create")?;
        let id = format!("upload-{:x}", state.buckets.next_generation());
        let upload = Multipart::new(self.object.to_owned(), kept_headers(self.headers));
        state.buckets.get_mut(self.bucket).ok_or_else(no_bucket)?.uploads.insert(id.clone(), upload);
        let xml = format!(
            "<?xml version='1.0' encoding='UTF-8'?><InitiateMultipartUploadResult><Bucket>{}</Bucket>\
             <Key>{}</Key><UploadId>{id}</UploadId></InitiateMultipartUploadResult>",
            escape(self.bucket),
            escape(self.object)
        );
        Ok(GcsReply::new(200).xml(xml).committed())
    }

    fn upload<'s>(&self, state: &'s mut State, id: &str) -> Result<&'s mut Multipart, GcsReply> {
        let bucket = state.buckets.get_mut(self.bucket).ok_or_else(no_bucket)?;
        let upload = bucket.uploads.get_mut(id).filter(|upload| upload.object == self.object);
        upload.ok_or_else(no_upload)
    }

    fn part(&self, state: &mut State, id: &str, segment: Segment) -> Answered {
        state.access.authorize("storage.objects.create")?;
        let number = self.query.get("partNumber").and_then(|number| number.parse().ok());
        let number = number.filter(|number| (1..=MOST_PARTS).contains(number)).ok_or_else(|| {
            error(400, "InvalidArgument", "Invalid argument.", "a part number is from 1 to 10000")
        })?;
        let etag = self.upload(state, id)?.store(number, segment);
        Ok(GcsReply::new(200).header("etag", etag).committed())
    }

    fn complete(&self, state: &mut State, id: &str, list: &str, now: Timestamp) -> Answered {
        state.access.authorize("storage.objects.create")?;
        let upload = self.upload(state, id)?;
        let (segments, headers) = (upload.listed(list).map_err(bad_list)?, upload.headers.clone());
        self.may_replace(state)?;
        let object = state.buckets.finish(segments, false, headers, now);
        let xml = format!(
            "<?xml version='1.0' encoding='UTF-8'?><CompleteMultipartUploadResult><Bucket>{}</Bucket>\
             <Key>{}</Key><ETag>{}</ETag></CompleteMultipartUploadResult>",
            escape(self.bucket),
            escape(self.object),
            escape(&object.etag)
        );
        let reply = GcsReply::new(200).version(&object).xml(xml).committed();
        self.store(state, object);
        state.buckets.get_mut(self.bucket).ok_or_else(no_bucket)?.uploads.remove(id);
        Ok(reply)
    }

    fn abort(&self, state: &mut State, id: &str) -> Answered {
        state.access.authorize("storage.multipartUploads.abort")?;
        self.upload(state, id)?;
        state.buckets.get_mut(self.bucket).ok_or_else(no_bucket)?.uploads.remove(id);
        Ok(GcsReply::new(204).committed())
    }
}

/// Start and length of `bytes=a-b`, `bytes=a-` or `bytes=-n` within `size`.
fn byte_range(header: &str, size: u64) -> Option<(u64, u64)> {
    let (from, to) = header.strip_prefix("bytes=")?.split_once('-')?;
    let (from, end) = match (from.parse::<u64>().ok(), to.parse::<u64>().ok()) {
        (Some(from), Some(to)) if from <= to => (from, size.min(to + 1)),
        (Some(from), None) if to.is_empty() => (from, size),
        (None, Some(last)) if from.is_empty() => (size.saturating_sub(last), size),
        _ => return None,
    };
    (from < end).then(|| (from, end - from))
}
