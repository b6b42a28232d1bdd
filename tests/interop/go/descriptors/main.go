// Writes the schema of gRPC's interoperability tests, with all that it imports, as a serialized FileDescriptorSet.
package main

import (
	"log"
	"os"

	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: descriptors FILE")
	}
	set := &descriptorpb.FileDescriptorSet{}
	add(set, map[string]bool{}, grpc_testing.File_grpc_testing_test_proto)
	bytes, err := proto.Marshal(set)
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(os.Args[1], bytes, 0o644); err != nil {
		log.Fatal(err)
	}
}

// A file comes after those that it imports.
func add(set *descriptorpb.FileDescriptorSet, seen map[string]bool, file protoreflect.FileDescriptor) {
	if seen[file.Path()] {
		return
	}
	seen[file.Path()] = true
	imports := file.Imports()
	for at := range imports.Len() {
		add(set, seen, imports.Get(at).FileDescriptor)
	}
	set.File = append(set.File, protodesc.ToFileDescriptorProto(file))
}
