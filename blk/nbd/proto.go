package nbd

// The numbers of the protocol, from doc/proto.md of the NBD project. All
// integers on the wire are big-endian.

const (
	magicInit       = 0x4e42444d41474943 // "NBDMAGIC"
	magicOption     = 0x49484156454F5054 // "IHAVEOPT"
	magicOptReply   = 0x3e889045565a9
	magicRequest    = 0x25609513
	magicSimple     = 0x67446698
	magicStructured = 0x668e33ef
)

// Handshake flags; the client's have the same values.
const (
	flagFixedNewstyle = 1 << 0
	flagNoZeroes      = 1 << 1
)

// Transmission flags.
const (
	FlagHasFlags        = 1 << 0
	FlagReadOnly        = 1 << 1
	FlagSendFlush       = 1 << 2
	FlagSendFUA         = 1 << 3
	FlagRotational      = 1 << 4
	FlagSendTrim        = 1 << 5
	FlagSendWriteZeroes = 1 << 6
	FlagSendDF          = 1 << 7
	FlagCanMultiConn    = 1 << 8
	FlagSendCache       = 1 << 10
	FlagSendFastZero    = 1 << 11
)

// Options.
const (
	optExportName      = 1
	optAbort           = 2
	optList            = 3
	optStartTLS        = 5
	optInfo            = 6
	optGo              = 7
	optStructuredReply = 8
	optListMetaContext = 9
	optSetMetaContext  = 10
)

// Replies to options.
const (
	repAck         = 1
	repServer      = 2
	repInfo        = 3
	repMetaContext = 4

	repErrUnsup    = 1<<31 + 1
	repErrPolicy   = 1<<31 + 2
	repErrInvalid  = 1<<31 + 3
	repErrUnknown  = 1<<31 + 6
	repErrShutdown = 1<<31 + 7
	repErrTooBig   = 1<<31 + 9
)

// Items of repInfo.
const (
	infoExport      = 0
	infoName        = 1
	infoDescription = 2
	infoBlockSize   = 3
)

// Commands.
const (
	cmdRead        = 0
	cmdWrite       = 1
	cmdDisc        = 2
	cmdFlush       = 3
	cmdTrim        = 4
	cmdCache       = 5
	cmdWriteZeroes = 6
	cmdBlockStatus = 7
)

// Command flags.
const (
	cmdFlagFUA      = 1 << 0
	cmdFlagNoHole   = 1 << 1
	cmdFlagDF       = 1 << 2
	cmdFlagReqOne   = 1 << 3
	cmdFlagFastZero = 1 << 4
)

// Structured replies.
const (
	replyFlagDone = 1 << 0

	replyOffsetData  = 1
	replyBlockStatus = 5
	replyError       = 1<<15 + 1
)

// base:allocation, the only metadata context there is.
const (
	allocationName = "base:allocation"
	allocationID   = 1

	stateHole = 1 << 0
	stateZero = 1 << 1
)

const (
	requestSize    = 28 // bytes of a request without its payload
	simpleSize     = 16 // bytes of a simple reply without its payload
	structuredSize = 20 // bytes of the header of a structured reply

	// maxString is the protocol's bound on the length of strings.
	maxString = 4096
)
