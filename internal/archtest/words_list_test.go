package archtest

// phrases is the list. A phrase belongs here when it was used in place of a
// standard term and is rarely right elsewhere.
func phrases() []phrase {
	return []phrase{
		// Private vocabulary.
		{`pretend\w*`, "simulate, simulated", true},
		{`hand(?:s|ed|ing)?[- ]?(?:over|out)s?\b`, "dispatch, issue or pass", true},
		{`(?:nudg|knock|hush)\w*`, "wake, retry or suppress", true},
		{`desk\b`, "dispatcher", true},
		{`beats?\b`, "heartbeat", true},
		{`gather(?:s|ed|ing)?\b`, "batch, collect", true},
		{`pulses?\b`, "heartbeat", true},
		{`keepers?\b`, "manager, or the name of the thing", true},
		{`(?:verdict|judge)\w*`, "classify, result", true},
		{`settl(?:e|es|ed|ing)\b`, "finalize, resolve", true},
		{`census\b`, "collector", true},
		{`mortals?\b`, "crashing, killable", true},
		{`barred\b`, "rejected", true},
		{`news\b`, "cancellations, changes", true},
		{`mend(?:s|ed|ing)?\b`, "repair, fix", true},
		{`whoever\b`, "the client, the operator, any program", true},
		{`(?:no|some)body\b`, "no one, or the subject: an operator, the node, a client", true},
		{`unheard\b`, "silent", true},
		{`helpless\b`, "unrecoverable", true},
		{`patience\b`, "timeout, limit", true},
		{`strangers?\b`, "third party, unauthorized client", true},
		{`(?:is|are|was|were|be|been|being|goes|went) away\b`, "unavailable", false},
		{`(?:is|was|were|be|been|goes|go|went|gone) dark\b|in the dark\b|dark (?:time|node)`, "disconnected, offline", false},
		{`(?:seeded|simulated) li(?:fe|ves)\b|lives of (?:a )?nodes?\b|a (?:node|machine)'s (?:whole )?life\b|whole life\b`, "lifecycle", false},
		{`house (?:rules?|words?)\b`, "project rules", false},
		{`bit(?:e|es|ing)\b`, "catch violations", false},
		{`doors?\b`, "endpoint, entry point, interface", true},
		{`(?:un)?born\b|births?\b`, "created, started; not yet created", true},
		{`rooms?\b(?:[^ ]|$| [^f]| f[^o])`, "capacity, space, width", true},
		{`complain(?:s|ed|ing|ts?)?\b`, "report, error output", true},
		{`wish(?:es|ed)?\b`, "request, intent", true},
		{`loud(?:ly|er)?\b`, "at level warn, visible", false},
		// Machines do not speak, listen or want.
		{`(?:tell|tells|telling|told)\b`, "notify, report, return, distinguish", true},
		{`(?:hear|hears|heard|hearing)\b`, "receive, observe", true},
		{`(?:knows|wants)\b(?:[^=]|$)`, "has, requires", false},
		{`ask(?:s|ed|ing)? again\b`, "retry", false},
		// Phrases that avoid a verb.
		{`any more\b`, "no longer", false},
		{`for ever\b|for good\b(?:[^ ]|$| [^r])`, "permanently", false},
		{`former(?:ly)?\b`, "previous, earlier, or the name of the thing", false},
		{`(?:anew|afresh)\b`, "again", false},
		{`the same again\b`, "the same request a second time", false},
		{`the waiting(?:[.,;:)]|$| (?:of|for|is|was|ends|begins)\b)`, "the wait, or a verb", false},
		{`(?:the|this|that) very (?:task|process|node|row|key|one|same)\b`, "the same", false},
		{`in the place of\b`, "instead of, replacing", false},
		{`(?:is|are|was|were|be) no error\b`, "is not an error", false},
		{`that (?:is|are|was|were) there\b`, "that exists", false},
		{`(?:does|do|did) not read(?:[.,;:)"]|$)`, "cannot be parsed", false},
		{`(?:see|sees|saw|seeing) to (?:it|that|this|the)\b`, "ensure, handle", false},
		{`(?:go|goes|going|gone|went) on\b`, "continue", false},
		{`stands\b(?:[^ ]|$| [^f]| f[^o])`, "is, remains", false},
		{`by (?:itself|themselves)\b`, "automatically, alone, or nothing", false},
		{`(?:bring|brings|bringing|brought)\b(?:[^ ]|$| [^u]| u[^p])`, "start, provide, return", true},
		{`(?:take|takes|taking|took|taken|give|gives|giving|gave|given)(?: \w+)? back\b`, "release, reclaim, return", false},
		{`(?:give|gives|giving|gave|given) up\b`, "stop, abandon, release", true},
		{`(?:is|are) to be\b`, "must be, will be", false},
		{`lets? (?:it )?go of\b`, "release", false},
		{`all the same\b`, "anyway", false},
		{`(?:talk|speak)s? (?:on|to) stderr`, "messages on stderr", false},
		// American spelling.
		{`(?:enrol|enrols|enrolments?)\b`, "enroll, enrollment", true},
		{`(?:behaviour|colour|favour|honour|labour|neighbour|flavour)\w*`, "the American spelling, -or", true},
		{`(?:licence|defence|offence)\w*`, "license, defense, offense", true},
		{`(?:artefact|catalogue|centre|programme|grey|fulfil|whilst|amongst)s?\b`, "the American spelling", true},
		{`(?:re|de|un)?(?:serial|recogn|organ|initial|author|normal|synchron|summar|minim|maxim|optim|prior|custom|general|final|real|util)is(?:e|es|ed|er|ers|ing|ation)\b`, "the American spelling, -ize", true},
		{`(?:cancel|label|signal|model|travel|level)l(?:ed|ing)\b`, "one l: canceled, labeled, signaled", false},
		// Documents that are not in the repository.
		{`(?:trust|requirements|lifecycle|(?-i:security)|aesthetics)\.md\b`, "a link to a document of this repository", false},
		{`design/\w+`, "a link to a document of this repository", false},
		{`S-[A-Z]{3}-\d\d\b`, "the requirement in words", false},
	}
}

// An allowed is a file in which a phrase is right. An empty pattern allows all.
type allowed struct{ file, pattern, reason string }

func allowedWords() []allowed {
	return []allowed{
		{"docs/glossary.md", "", "its last column lists the words we do not use"},
		{"deploy/dev/account.go", `(?:no|some)body\b`, "a user of the operating system"},
		{"deploy/dev/temporal/server.go", `news\b`, "a field of Temporal's configuration"},
		{"api/nodeapi/task.go", `(?:cancel|label|signal|model|travel|level)l(?:ed|ing)\b`, "a status value in an error message"},
		{"workflows/drain_test.go", `(?:cancel|label|signal|model|travel|level)l(?:ed|ing)\b`, "a status value in a recorded call"},
		{"internal/providers/maas/maastest/routes.go", `(?:re|de|un)?(?:serial|recogn|organ|initial|author|normal|synchron|summar|minim|maxim|optim|prior|custom|general|final|real|util)is(?:e|es|ed|er|ers|ing|ation)\b`, "an error message of MAAS"},
		{"internal/archtest/words_list_test.go", "", "this list"},
		{"internal/archtest/words_test.go", "", "plants uses"},
	}
}
