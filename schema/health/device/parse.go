package device

import (
	"regexp"
	"strconv"
	"strings"
)

// address matches the bus address of a PCI device.
const address = `(?:[0-9a-fA-F]{1,8}:)?[0-9a-fA-F]{1,2}:[0-9a-fA-F]{2}(?:\.[0-7])?`

// pattern recognizes one form of a line. Its groups are named device, code, and message.
type pattern struct {
	kind Kind
	// has is a text of every such line: it is much cheaper to look for than the expression.
	has   string
	form  *regexp.Regexp
	code  int // if the line has no code
	fatal func(message string) bool
}

func always(string) bool { return true }
func never(string) bool  { return false }

// Parser reads lines of the kernel log. The zero value is not usable; see NewParser.
type Parser struct{ patterns []pattern }

// NewParser returns a parser of all kinds of events. It is safe for concurrent use.
func NewParser() *Parser {
	p := func(kind Kind, has, form string, fatal func(string) bool) pattern {
		return pattern{kind: kind, has: has, form: regexp.MustCompile(form), fatal: fatal}
	}
	lost := p(KindXID, "allen off the bus", `NVRM:\s.*?GPU (?:at )?(?:PCI:)?(?P<device>`+address+`)\b.*?(?P<message>fallen off the bus)`, always)
	lost.code = 79
	return &Parser{[]pattern{
		p(KindXID, "NVRM: Xid", `NVRM: Xid \((?:PCI:)?(?P<device>`+address+`)[^)]*\): (?P<code>\d+)(?:,\s*(?P<message>.*))?$`, fatalLink()),
		lost,
		p(KindSXID, "SXid", `SXid \((?:PCI:)?(?P<device>`+address+`)\): (?P<code>\d+),\s*(?P<message>(?:Fatal|Non-fatal|Non-Fatal).*)$`, fatalWord),
		p(KindMemory, "EDAC ", `EDAC (?P<device>MC\d+): \d+ UE (?P<message>.*)$`, always),
		p(KindMemory, "EDAC ", `EDAC (?P<device>MC\d+): \d+ CE (?P<message>.*)$`, never),
		p(KindMemory, "Memory failure", `Memory failure: (?P<device>0x[0-9a-fA-F]+): (?P<message>.*)$`, failedRecovery),
		p(KindCPU, "[Hardware Error]", `\[Hardware Error\]: (?:CPU )(?P<device>\d+): Machine Check(?: Exception| Event)?: (?P<message>.*)$`, uncorrected),
		p(KindPCI, "PCIe Bus Error", `(?P<device>`+address+`): (?:AER: )?PCIe Bus Error: (?P<message>severity=.*)$`, uncorrectedPCI),
		p(KindNIC, "mlx5_core", `mlx5_core (?P<device>`+address+`): (?P<message>.*(?:poll_health|health_care|mlx5_health).*(?:Fatal error|compromised|recovery failed|unresponsive).*)$`, always),
		p(KindNIC, "mlx5_core", `mlx5_core (?P<device>`+address+`): (?P<message>.*(?:insufficient power on the PCIe slot|High Temperature|Cable error|Cable unplugged).*)$`, never),
		p(KindDisk, "Remounting filesystem read-only", `(?P<message>\((?P<device>[\w-]+)\): Remounting filesystem read-only)`, always),
		p(KindDisk, "I/O error", `(?:I/O error|critical medium error), dev (?P<device>[\w-]+), (?P<message>sector.*)$`, never),
		p(KindDisk, "critical medium error", `critical medium error, dev (?P<device>[\w-]+), (?P<message>sector.*)$`, never),
		p(KindDisk, "nvme", `nvme (?P<device>nvme\d+): (?P<message>controller is down; will reset.*|Removing after probe failure.*|Device not ready.*)$`, removed),
		p(KindDisk, "failing I/O", `block (?P<device>[\w-]+): (?P<message>no available path - failing I/O)`, always),
	}}
}

// Parse returns the event in a line of the kernel log, with or without its time and host. It returns
// false for a line that is no known error of a device. The line is untrusted: what is longer than
// 4096 bytes is ignored.
func (p *Parser) Parse(line string) (Event, bool) {
	line = strings.TrimRight(line[:min(len(line), maxLine)], "\r\n ")
	for _, form := range p.patterns {
		if strings.Contains(line, form.has) {
			if e, ok := form.event(line); ok {
				return e, true
			}
		}
	}
	return Event{}, false
}

func (p pattern) event(line string) (Event, bool) {
	m := p.form.FindStringSubmatch(line)
	if m == nil {
		return Event{}, false
	}
	e := Event{Kind: p.kind, Code: p.code}
	for i, name := range p.form.SubexpNames() {
		switch name {
		case "device":
			e.Device = deviceName(m[i])
		case "code":
			code, err := strconv.Atoi(m[i])
			if err != nil || code > maxCode {
				return Event{}, false
			}
			e.Code = code
		case "message":
			e.Message = printable(m[i], maxMessage)
		}
	}
	e.Fatal = p.fatal(e.Message)
	if p.kind == KindXID && e.Code == xidRecoveryAction {
		e.Action = changedAction(e.Message)
	}
	return e, true
}

// maxCode bounds the codes that a line may have: SXIDs have five digits.
const maxCode = 99999

// xidRecoveryAction is the XID that says that the recovery action of a GPU changed.
const xidRecoveryAction = 154

// fatalLink reports the severity that NVLink XIDs (144 to 150) have in their message: "RLW_REMAP Fatal XC0
// i0 Link 02". The form is longer than the name of a process, which is in the message too and whose user
// chooses it.
func fatalLink() func(string) bool {
	return regexp.MustCompile(`\sFatal\s+XC\d\s+i\d+\s+Link\s`).MatchString
}

func fatalWord(message string) bool { return strings.HasPrefix(message, "Fatal") }

func removed(message string) bool { return strings.HasPrefix(message, "Removing") }

func failedRecovery(message string) bool {
	return strings.Contains(message, "Failed") || strings.Contains(message, "Ignored")
}

func uncorrectedPCI(message string) bool {
	return strings.Contains(message, "Uncorrect") && strings.Contains(message, "(Fatal)")
}

// uncorrected reads the status register of a machine check: "0 Bank 5: bea0000000000108". Bit 61 (UC)
// is set if the error was not corrected.
func uncorrected(message string) bool {
	_, text, _ := strings.Cut(message, "Bank ")
	_, text, _ = strings.Cut(text, ": ")
	text, _, _ = strings.Cut(text, " ")
	status, err := strconv.ParseUint(text, 16, 64)
	return err == nil && status&(1<<61) != 0
}

// LostGPU returns the bus address of the GPU in a line with which nvidia-smi says that it cannot read it:
// "Unable to determine the device handle for GPU0: 0000:24:00.0: GPU is lost. ...". It returns "" for
// other lines.
func LostGPU(line string) string {
	form := regexp.MustCompile(`(?i)device handle for GPU(?:\s*|\d+:\s*)(` + address + `): (?:GPU is lost|Unknown Error)`)
	m := form.FindStringSubmatch(line[:min(len(line), maxLine)])
	if m == nil {
		return ""
	}
	return PCIAddress(m[1])
}

func deviceName(s string) string {
	if address := PCIAddress(s); address != "" {
		return address
	}
	return printable(s, maxDevice)
}

// PCIAddress returns the bus address of a PCI device in one form, "0000:3b:00": domain, bus and device
// in lower case, without the function. It reads "0000:3B:00.0", "00000000:3B:00.0", "3b:00.0" and
// "PCI:0000:3b:00". It returns "" for other texts.
func PCIAddress(s string) string {
	s = strings.ToLower(strings.TrimPrefix(strings.TrimSpace(s), "PCI:"))
	if base, function, ok := strings.Cut(s, "."); ok {
		if len(function) != 1 {
			return ""
		}
		s = base
	}
	parts := strings.Split(s, ":")
	if len(parts) == 2 {
		parts = append([]string{"0"}, parts...)
	}
	if len(parts) != 3 || len(parts[0]) > 8 || len(parts[1]) != 2 || len(parts[2]) != 2 {
		return ""
	}
	domain, err := strconv.ParseUint(parts[0], 16, 32)
	if err != nil || !isHex(parts[1]) || !isHex(parts[2]) {
		return ""
	}
	return pad(strconv.FormatUint(domain, 16), 4) + ":" + parts[1] + ":" + parts[2]
}

func isHex(s string) bool {
	_, err := strconv.ParseUint(s, 16, 64)
	return err == nil
}

func pad(s string, width int) string {
	return strings.Repeat("0", max(0, width-len(s))) + s
}

// printable returns s with at most limit characters, and "?" for each that is not printable ASCII.
func printable(s string, limit int) string {
	out := []byte(s[:min(len(s), limit)])
	for i, c := range out {
		if c < ' ' || c > '~' {
			out[i] = '?'
		}
	}
	return string(out)
}
