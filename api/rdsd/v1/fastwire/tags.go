package fastwire

// Wire types, and the tags of the fields of rdsd.proto that are read and written by hand:
// a field's number and its type, all of one byte.
const (
	Varint = 0
	Bytes  = 2

	ClientSend = 2<<3 | Bytes

	SendID           = 1<<3 | Varint
	SendPayload      = 2<<3 | Bytes
	SendLength       = 3<<3 | Bytes
	SendDestination  = 4<<3 | Bytes
	SendIndex        = 5<<3 | Bytes
	SendFirstTag     = 6<<3 | Varint
	SendWantOutcomes = 7<<3 | Varint
	SendWait         = 8<<3 | Varint
	SendTimeout      = 9<<3 | Varint
	SendResultLater  = 10<<3 | Varint

	ServerSendResult = 2<<3 | Bytes
	ServerRecv       = 3<<3 | Bytes

	ResultID       = 1<<3 | Varint
	ResultAccepted = 2<<3 | Varint

	RecvPayload = 1<<3 | Bytes
	RecvLength  = 2<<3 | Bytes
	RecvSource  = 3<<3 | Bytes
	RecvIndex   = 4<<3 | Bytes

	EndpointAddress = 1<<3 | Bytes
	EndpointPort    = 2<<3 | Varint
)
