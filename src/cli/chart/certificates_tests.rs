use k8s_openapi::ByteString;

use super::*;

const NAMES: [&str; 2] = ["a.svc", "b.svc"];

/// The two Secrets, as an API server would hold them.
#[derive(Clone, Default)]
struct Secrets {
    server: Secret,
    client: Secret,
}

/// What a process holds that has read its Secret: its certificate, and the CAs that it trusts.
#[derive(Clone)]
struct Loaded {
    certificate: String,
    cas: String,
}

impl Secrets {
    fn made(at: OffsetDateTime) -> Self {
        let mut secrets = Self::default();
        secrets.change(&Step::Replace(String::new()), at, 2);
        secrets
    }

    fn step(&self, now: OffsetDateTime) -> Step {
        step(&self.server, &self.client, &NAMES, now)
    }

    /// Does the first `writes` of a step.
    fn change(&mut self, step: &Step, now: OffsetDateTime, writes: usize) {
        let changes = changes(step, &self.server, &NAMES, now).unwrap();
        for (secret, change) in [&mut self.server, &mut self.client].into_iter().zip(changes).take(writes) {
            let Some(change) = change else { continue };
            let data = secret.data.get_or_insert_default();
            for key in change["data"].as_object().into_iter().flat_map(|removed| removed.keys()) {
                data.remove(key);
            }
            for (key, text) in change["stringData"].as_object().unwrap() {
                data.insert(key.clone(), ByteString(text.as_str().unwrap().as_bytes().to_vec()));
            }
        }
    }

    fn run(&mut self, now: OffsetDateTime) -> Step {
        let step = self.step(now);
        self.change(&step, now, 2);
        step
    }
}

fn load(secret: &Secret) -> Loaded {
    let read = |key| text(secret, key).unwrap().to_owned();
    Loaded { certificate: read(CERT), cas: read(CA) }
}

fn days(count: i64) -> Duration {
    Duration::days(count)
}

/// Whether a side that has loaded `trusting` accepts the certificate of the other now.
fn trusts(trusting: &Loaded, other: &Loaded, now: OffsetDateTime) -> bool {
    let contents = |text: &str| {
        Pem::iter_from_buffer(text.as_bytes()).map(|pem| pem.unwrap().contents).collect::<Vec<_>>()
    };
    let (cas, leaf) = (contents(&trusting.cas), contents(&other.certificate).remove(0));
    let (_, leaf) = X509Certificate::from_der(&leaf).unwrap();
    let is_valid = |certificate: &X509Certificate<'_>| {
        let validity = certificate.validity();
        (validity.not_before.to_datetime()..validity.not_after.to_datetime()).contains(&now)
    };
    // All CAs have one name; the identifier of the key tells them apart.
    let signed_by = |ca: &X509Certificate<'_>| {
        let id = ca.iter_extensions().find_map(|extension| match extension.parsed_extension() {
            x509_parser::extensions::ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
            _ => None,
        });
        leaf.iter_extensions().any(|extension| match extension.parsed_extension() {
            x509_parser::extensions::ParsedExtension::AuthorityKeyIdentifier(by) => {
                by.key_identifier.as_ref().map(|by| by.0.to_vec()) == id && id.is_some()
            }
            _ => false,
        })
    };
    let has_signer = cas.iter().any(|der| {
        let (_, ca) = X509Certificate::from_der(der).unwrap();
        is_valid(&ca) && signed_by(&ca)
    });
    has_signer && is_valid(&leaf)
}

fn serves(server: &Secret, client: &Loaded, now: OffsetDateTime) -> bool {
    let server = load(server);
    trusts(&server, client, now) && trusts(client, &server, now)
}

#[test]
fn certificates_that_serve_are_kept_and_useless_ones_are_made_again() {
    let now = OffsetDateTime::now_utc();
    let made = Secrets::made(now);
    let reason = |change: &dyn Fn(&mut Secrets), now: OffsetDateTime| {
        let mut changed = made.clone();
        change(&mut changed);
        let Step::Replace(reason) = changed.step(now) else { panic!("{:?}", changed.step(now)) };
        assert_eq!(changed.run(now), Step::Replace(reason.clone()));
        assert!(changed.step(now) == Step::Keep && serves(&changed.server, &load(&changed.client), now));
        reason
    };
    assert_eq!(made.step(now), Step::Keep);
    assert_eq!(reason(&|all| all.server = Secret::default(), now), "there are none yet");
    assert!(reason(&|all| all.client = Secrets::made(now).client, now).ends_with("two authorities"));
    let damage = |all: &mut Secrets| {
        let nonsense = ByteString(b"nonsense".to_vec());
        all.client.data.as_mut().unwrap().insert(CERT.to_owned(), nonsense);
    };
    assert!(reason(&damage, now).ends_with("cannot be read"));
    assert!(reason(&|_| {}, now + days(366)).starts_with("one that is there was valid until"));
    let step = step(&made.server, &made.client, &["a.svc", "c.svc"], now);
    assert_eq!(step, Step::Replace("the server's that is there is not for c.svc".to_owned()));
}

/// Over three years of daily runs, with a client that restarts on one day of each two months alone.
#[test]
fn a_renewal_leaves_two_months_to_restart_cluster_autoscaler() {
    let begin = OffsetDateTime::now_utc();
    for restart in 0..3 {
        let (mut secrets, mut steps) = (Secrets::made(begin), Vec::new());
        let mut client = load(&secrets.client);
        for day in 0..3 * 365 {
            let now = begin + days(day);
            let step = secrets.run(now);
            assert!(serves(&secrets.server, &client, now), "day {day}: {step:?}");
            if day % 60 == restart * 20 {
                client = load(&secrets.client);
                assert!(serves(&secrets.server, &client, now), "day {day}: restarted");
            }
            if step != Step::Keep {
                steps.push((day, step));
            }
        }
        let renewals = [244, 305, 488, 549, 732, 793, 976, 1037];
        let wanted = renewals.into_iter().zip([Step::Renew, Step::Switch].into_iter().cycle());
        assert_eq!(steps, wanted.take(steps.len()).collect::<Vec<_>>());
        assert_eq!(steps.len(), 8);
    }
}

#[test]
fn a_job_that_ends_between_its_writes_is_made_up_for() {
    let begin = OffsetDateTime::now_utc();
    let now = begin + days(250);
    let mut secrets = Secrets::made(begin);
    let client = load(&secrets.client);
    assert_eq!(secrets.step(now), Step::Renew);
    secrets.change(&Step::Renew, now, 1);
    assert!(serves(&secrets.server, &client, now) && serves(&secrets.server, &load(&secrets.client), now));
    assert_eq!(secrets.run(now), Step::Renew);
    assert_eq!(secrets.step(now), Step::Keep);
    assert!(serves(&secrets.server, &client, now) && serves(&secrets.server, &load(&secrets.client), now));
    let later = begin + days(310);
    let restarted = load(&secrets.client);
    assert_eq!(secrets.run(later), Step::Switch);
    assert!(serves(&secrets.server, &restarted, later));
}
