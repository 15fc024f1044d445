package rdsd

import "google.golang.org/protobuf/reflect/protoreflect"

// fill sets every field of a message, and of the messages in it, to something.
func fill(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.IsList() {
			l := m.Mutable(f).List()
			if f.Message() != nil {
				fill(l.AppendMutable().Message())
			} else {
				l.Append(something(f))
			}
			continue
		}
		if f.Message() != nil {
			fill(m.Mutable(f).Message())
			continue
		}
		m.Set(f, something(f))
	}
}

func something(f protoreflect.FieldDescriptor) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("text")
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte{1})
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(2)
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(3)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(4)
	}
	return protoreflect.ValueOfUint64(5)
}
